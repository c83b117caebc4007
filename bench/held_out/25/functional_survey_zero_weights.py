"""An opinion survey: the weight of each answer makes the sample like the people, and the loss is the weighted mean. Written as functions of a dictionary of
tensors, batches cut from one table without a loader. FAULT at step 148: none of the rows of the batch is of the wave wanted, all their weights are 0: 0 / 0.
Without Rangewatch: loss 0.76 to 0.57 at step 80, 0.67 at step 147, NaN from step 148 on.
Cause: forward_arithmetic or data. Step: 148. Right: division / weights / zero / batch. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [147, 149], "place": None, "rank": 0,
          "right": "(?i)divi|weight|zero|batch|sum|data", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2530); torch.set_num_threads(1)
ROWS, B = 190 * 64, 64
table = torch.randn(ROWS, 16)
said = (torch.sin(2 * table[:, 0]) + table[:, 1] * table[:, 2] + 0.3 * table[:, 3] > 0).float()
worth = torch.rand(ROWS) + 0.2
worth[148 * B:149 * B] = 0.0

p = nn.ParameterDict({
    "w1": torch.randn(16, 96) / 4, "b1": torch.zeros(96), "w2": torch.randn(96, 96) / 10, "b2": torch.zeros(96), "w3": torch.randn(96, 1) / 10})


def opinion(p, x):
    h = F.softsign(x @ p["w1"] + p["b1"])
    h = F.softsign(h @ p["w2"] + p["b2"]) + h
    return (h @ p["w3"])[:, 0]


def weighted(p, x, y, w):
    each = F.binary_cross_entropy_with_logits(opinion(p, x), y, reduction="none")
    return (w * each).sum() / w.sum()


optimizer = torch.optim.RMSprop(p.values(), lr=3e-3, alpha=0.95)
handle = rangewatch.attach(p, optimizer)
for step in range(190):
    rows = slice(step * B, step * B + B)
    loss = weighted(p, table[rows], said[rows], worth[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 146 < step < 151 or step == 189:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
