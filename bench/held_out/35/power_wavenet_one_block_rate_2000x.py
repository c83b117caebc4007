"""A gated (WaveNet-like) stack forecasts a household's electric load; "discriminative" rates, a group for each block (Adam). FAULT at step 140: a rule raises the rate of late blocks by 0.15**(i - 4) where 0.15**(4 - i) was meant, and only block 0 ("unfreeze slowly")
is touched: its rate goes from 2e-3 to some 4: in one step that one layer moves by many times its own size; the other blocks are as before.
Without Rangewatch: mse 0.15 to 0.005 at step 140; 7.8 at 141, 2209 at 142, 127 at 143, still 1.7 at 180. blocks.0 moved by 4.3 times its norm in step 140, the other blocks by 0.003.
Cause: learning_rate (group of blocks.0; its weights move too far in one step). Step: 140. Right: the rate / update of blocks.0 is too large. Wrong: GradScaler, attention mask, bad data, checkpoint."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [139, 144], "place": r"(blocks\.0.*)?", "rank": None,
          "right": "(?i)learning rate|\\blr\\b|update|group", "wrong": ["GradScaler", "attention mask", "checkpoint"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(5117)
torch.set_num_threads(1)


def load(n):
    t0 = 24 * 7 * torch.rand(n, 1)
    t = t0 + torch.arange(33.0)
    day = torch.exp(3 * (torch.sin(2 * math.pi * (t - 13) / 24) - 1)) + 0.6 * torch.exp(4 * (torch.sin(2 * math.pi * (t - 2) / 24) - 1))
    week = 1 + 0.4 * (torch.sin(2 * math.pi * t / 168) > 0.5)
    x = day * week + 0.03 * torch.randn(n, 33)
    return x[:, None, :-1], x[:, -1]


class Gated(nn.Module):
    def __init__(self, c, d):
        super().__init__()
        self.both = nn.Conv1d(c, 2 * c, 2, dilation=d)
        self.back = nn.Conv1d(c, c, 1)
        self.d = d

    def forward(self, x):
        a, b = self.both(nn.functional.pad(x, (self.d, 0))).chunk(2, 1)
        return x + self.back(torch.tanh(a) * torch.sigmoid(b))


class Load(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.lift = nn.Conv1d(1, c, 1)
        self.blocks = nn.ModuleList(Gated(c, 2 ** k) for k in range(5))
        self.watts = nn.Linear(c, 1)

    def forward(self, x):
        x = self.lift(x)
        for block in self.blocks:
            x = block(x)
        return self.watts(x[..., -1])[:, 0]


house = Load()
rest = [*house.lift.parameters(), *house.watts.parameters()]
opt = torch.optim.Adam([{"params": b.parameters()} for b in house.blocks] + [{"params": rest}], lr=2e-3)
handle = rangewatch.attach(house, opt)
for step in range(200):
    if step == 140:
        for i in range(1):
            opt.param_groups[i]["lr"] = 2e-3 * 0.15 ** (i - 4)
    x, y = load(48)
    loss = (house(x) - y).square().mean()
    opt.zero_grad()
    loss.backward()
    before = [b.both.weight.detach().clone() for b in house.blocks]
    opt.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 138 < step < 144:
        moved = [f"{((b.both.weight - w).norm() / w.norm()).item():.2g}" for b, w in zip(house.blocks, before)]
        print(step, "mse", f"{loss.item():.4g}", "relative move of the blocks", *moved, flush=True)
handle.detach()
