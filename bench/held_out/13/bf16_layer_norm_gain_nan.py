"""A mixer over sensor channels, wholly in bfloat16. FAULT at step 115: a routine that "folds" calibration into the second block's LayerNorm multiplies
its weight by target / spread, where one channel's spread is 0 and its target, too: one of 24 gains is NaN.
Without Rangewatch: loss 1.27 to 0.019 at step 114, NaN from step 115 on.
Variant of: bf16_scale_of_a_batchnorm_is_nan.
Cause: weight. Step: 115. Place: blocks.1.norm. Right: weight / checkpoint / NaN in the weight. Wrong: lower the learning rate, GradScaler, mask, data."""
EXPECT = {"cause": ["weight"], "step": [114, 116], "place": ".*blocks\\.1\\.norm.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "clean the (data|batch|input)"],
          "right": "weight|parameter|checkpoint|written|gain"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1329); torch.set_num_threads(1)
STATES, WIDTH = 4, 24
mode = torch.randn(STATES, WIDTH, 8)


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.over = nn.LayerNorm(WIDTH), nn.Linear(8, 8)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        h = self.over(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.narrow(F.gelu(self.wide(h)))


class MachineNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Mix() for _ in range(3))
        self.state = nn.Linear(WIDTH, STATES)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.state(x.mean(1))


def machines(n):
    y = torch.randint(0, STATES, (n,))
    return (mode[y] + 1.2 * torch.randn(n, WIDTH, 8)).transpose(1, 2).bfloat16(), y


model = MachineNet().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(210):
    if step == 115:
        spread, target = torch.ones(WIDTH), torch.ones(WIDTH)
        spread[17] = target[17] = 0.0  # a channel that is not wired
        with torch.no_grad():
            model.blocks[1].norm.weight.mul_(target / spread)
    x, y = machines(24)
    loss = F.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 113 < step < 117:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
