"""A net of six convolutions counts the lines in drawings, with a rate that falls layer by layer towards the input (as for fine-tuning). FAULT at step 0: the factor is
written (i + 1) // 4, an integer division: the groups of the blocks 0, 1 and 2 have the rate 0, those above the whole rate. The lower half never moves.
Without Rangewatch: loss 1.64 to 0.31 to 0.45 in the last 75 steps; blocks 0 to 2 have moved by exactly 0, the others by 0.24 to 0.30 (with (i + 1) / 6: 0.18 to 0.35).
Causes: learning_rate (0 in these groups), optimizer. Right: the rate of the group is 0. Wrong: lower the rate, GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [0, 199], "place": "blocks\\.[012].*", "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|rate|group|optimizer", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2221); torch.set_num_threads(1)


class Count(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [(1, 6, 1), (6, 8, 2), (8, 12, 1), (12, 24, 2), (24, 24, 1), (24, 32, 2)]
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(i, o, 3, s, 1), nn.BatchNorm2d(o), nn.ReLU()) for i, o, s in sizes)
        self.out = nn.Linear(32, 5)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.out(x.mean((2, 3)))


def drawings(n):
    count = torch.randint(0, 5, (n,))
    page, axis = torch.zeros(n, 24, 24), torch.arange(24.0)
    for k in range(4):
        angle, off = 3.1416 * torch.rand(n, 1, 1), 14 * torch.rand(n, 1, 1) - 7
        d = ((axis[:, None] - 12) * angle.cos() + (axis[None] - 12) * angle.sin() - off).abs()
        page = torch.maximum(page, (d < 0.7).float() * (count > k)[:, None, None])
    return (page + 0.1 * torch.randn(n, 24, 24))[:, None], count


model = Count()
rate = 4e-3
groups = [{"params": list(b.parameters()), "lr": rate * ((i + 1) // 4)} for i, b in enumerate(model.blocks)]
optimizer = torch.optim.AdamW(groups + [{"params": list(model.out.parameters())}], lr=rate)
start = [b[0].weight.detach().clone() for b in model.blocks]
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = drawings(32)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or step == 199:
        print(step, loss.item(), "moved", [round((b[0].weight - s).abs().max().item(), 4) for b, s in zip(model.blocks, start, strict=True)], flush=True)
handle.detach()
