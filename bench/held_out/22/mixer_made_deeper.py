"""A small MLP-mixer over patches of a signal learns to sort its patches by loudness. FAULT at step 0: the optimizer is made over a net of one block, then the net
is made deeper: the block is copied three times with copy.deepcopy (blocks.1 to blocks.3) behind the first.
No copy is in the optimizer: three of the four blocks get gradients and never take a step.
Without Rangewatch: loss 2.28 to 1.19 at step 219; the copies have moved by exactly 0 (with an optimizer over all: 0.70).
Causes: optimizer (parameters it does not have). Right: make the optimizer after the copies / add_param_group. Wrong: the rate, clip, mask, GradScaler."""
EXPECT = {"cause": ["optimizer"], "step": [0, 219], "place": "blocks\\.[123].*", "rank": 0,
          "right": "(?i)optimizer|param_group", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2210); torch.set_num_threads(1)


class Mix(nn.Module):
    def __init__(self, places=8, width=32):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(places, 32), nn.GELU(), nn.Linear(32, places))
        self.along = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        x = x + self.across(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.n2(x))


class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(6, 32)
        self.blocks = nn.ModuleList([Mix()])
        self.rank = nn.Linear(32, 8)

    def forward(self, x):
        h = self.patch(x)
        for block in self.blocks:
            h = block(h)
        return self.rank(h)


model = Sorter()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _ in range(3):
    model.blocks.append(copy.deepcopy(model.blocks[0]))
before = [p.detach().clone() for p in model.blocks[1:].parameters()]
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    loud = torch.rand(64, 8, 1)
    x = loud * torch.randn(64, 8, 6).sign() + 0.05 * torch.randn(64, 8, 6)
    y = loud[..., 0].argsort(1).argsort(1)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 40 == 0 or step == 219:
        moved = sum((p - q).abs().sum().item() for p, q in zip(model.blocks[1:].parameters(), before, strict=True))
        print(step, loss.item(), "copies moved", moved, flush=True)
handle.detach()
