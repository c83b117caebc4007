"""Pictures of minerals; at step 100 the body is frozen and an adapter at each stage is thawed (a convolution down, and one up whose weight is 0). FAULT at step
100: each weight's gradient is clipped by itself, g / norm * min(norm, 0.5), without an eps. As "up" is 0, the gradient of "down" is 0, and 0 / 0 is NaN.
Loss and gradients of that step are finite before the clip.
Without Rangewatch: loss 1.60 to 0.008 at step 99, 3.14 at step 100 (another quarry), NaN from step 101 on.
Variant of: clip_of_each_adapter_divides_by_zero.
Cause: clip. Step: 100. Place: adapter down. Right: clip / norm / eps / divide / zero. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["clip", "optimizer"], "step": [99, 101], "place": ".*down.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "clip|norm|eps|divi|zero"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1215); torch.set_num_threads(1)
MINERALS = 5
crystal = torch.randn(2, MINERALS, 3, 8, 8)


class Adapter(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x):
        return x + self.up(F.gelu(self.down(x)))


class MineralNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleList([nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 24, 3, stride=2, padding=1)])
        self.adapters = nn.ModuleList([Adapter(16), Adapter(24)])
        self.adapters.requires_grad_(False)
        self.name = nn.Linear(24, MINERALS)

    def forward(self, x):
        for conv, adapter in zip(self.body, self.adapters):
            x = adapter(F.relu(conv(x)))
        return self.name(x.mean((2, 3)))


model = MineralNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 100:  # the second quarry, by adapters
        model.body.requires_grad_(False)
        model.adapters.requires_grad_(True)
    y = torch.randint(0, MINERALS, (32,))
    x = crystal[int(step >= 100), y] + 0.7 * torch.randn(32, 3, 8, 8)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        if p.grad is not None:
            norm = p.grad.norm()
            p.grad.div_(norm).mul_(norm.clamp(max=0.5))  # no eps
    optimizer.step()
    if step % 20 == 0 or step in (99, 100, 101, 219):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
