"""A frozen net of residual blocks, trained beforehand to predict solubility, is adapted to a second solvent by low-rank adapters. FAULT at step 0: the rate of
the adapters is 1000.0 (1e-3 was meant, the sign of the exponent is lost: 1e+3); Adam moves each weight of an adapter by 1000 in its first step.
Without Rangewatch: loss 0.67 at step 0, inf at step 1, NaN from step 2 on.
Cause: learning_rate. Step: 0. Right: learning rate. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 6], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|step size", "wrong": ["GradScaler", "attention mask", "bfloat16"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2106)
torch.set_num_threads(1)


class LowRank(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features ** 0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(torch.nn.functional.silu(self.a(x)))


class Solubility(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.enter = nn.Linear(20, width)
        self.blocks = nn.Sequential(Block(width), Block(width), Block(width))
        self.leave = nn.Linear(width, 1)

    def forward(self, x):
        return self.leave(self.blocks(self.enter(x)))[:, 0]


water, oil = torch.randn(20), torch.randn(20)


def molecules(n, solvent):
    x = torch.randn(n, 20)
    return x, torch.tanh(x @ solvent / 4) + 0.05 * torch.randn(n)


model = Solubility()
first = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(150):
    x, y = molecules(64, water)
    first.zero_grad()
    (model(x) - y).square().mean().backward()
    first.step()
model.requires_grad_(False)
for block in model.blocks:
    block.a, block.b = LowRank(block.a), LowRank(block.b)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e+3)
handle = rangewatch.attach(model, optimizer)
for step in range(160):
    x, y = molecules(64, oil)
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 5 or step == 159:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
