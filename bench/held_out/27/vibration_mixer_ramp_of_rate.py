"""An MLP mixer over windows of vibration, four kinds of bearing damage (SGD, momentum 0.9). FAULT: the rate is warmed up over 200 steps to 0.8, which was copied
from a run of 8192 samples a batch; here a batch is 48, and the net diverges on the way up the ramp.
Without Rangewatch: loss 1.43 to 0.21 at step 20, 0.27 at step 40, 2.4 at step 50 (rate 0.2), 43 at step 55, 2e9 at step 60, NaN from step 62.
Cause: learning_rate. Step: 30 to 61, on the ramp. Right: learning rate / warm-up. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [20, 66], "place": None, "rank": None,
          "right": "(?i)learning rate|\\blr\\b|warm|step size|ramp|peak", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2716); torch.set_num_threads(1)
t = torch.arange(64) / 64.0


def windows(n):
    y = torch.randint(0, 4, (n,))
    f = torch.tensor([3.0, 5.0, 8.0, 13.0])[y][:, None]
    wave = torch.sin(6.28 * (f * t + torch.rand(n, 1))) + 0.5 * torch.sin(6.28 * (2 * f * t + torch.rand(n, 1)))
    return (wave + 0.6 * torch.randn(n, 64)).view(n, 8, 8), y


class Mix(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 24), nn.GELU(), nn.Linear(24, tokens))
        self.within = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        x = x + self.across(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.n2(x))


net = nn.Sequential(nn.Linear(8, 32), Mix(8, 32), Mix(8, 32), nn.Flatten(), nn.Linear(256, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.8, momentum=0.9)
ramp = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001, total_iters=200)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    x, y = windows(48)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or step == 219:
        print(step, loss.item(), "rate", ramp.get_last_lr()[0], "weight", net[0].weight.abs().max().item(), flush=True)
    ramp.step()
    handle.log(loss=loss.item())
handle.detach()
