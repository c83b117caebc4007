"""A net that removes grain from films, trained by two cosines of the rate. FAULT at step 105: the second cosine begins at 3e-1 where 3e-3 was meant, a
hundred times too high; AdamW throws all weights about.
Without Rangewatch: loss 0.158 to 0.058 at step 104, 3.6 at step 106, 147 at step 109, 2,502 at step 140, 3.4 at the end.
Cause: learning_rate. Step: 105. Right: lower the learning rate / schedule. Wrong: GradScaler, mask, data."""
EXPECT = {"cause": ["learning_rate"], "step": [104, 110], "place": None, "rank": 0,
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)skip the batch"],
          "right": "(?i)learning.?rate|\\blr\\b|schedul|restart"}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1913); torch.set_num_threads(1)
FIRST, SECOND = 105, 95


def rate(step):
    if step < FIRST:
        return 3e-3 * 0.5 * (1 + math.cos(math.pi * step / FIRST))
    return 3e-1 * 0.5 * (1 + math.cos(math.pi * (step - FIRST) / SECOND))


def films(n):
    coarse = F.interpolate(torch.rand(n, 1, 4, 4), 16, mode="bicubic")
    return coarse, coarse + 0.2 * torch.randn(n, 1, 16, 16)


model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.PReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.PReLU(), nn.Conv2d(16, 1, 3, padding=1))
optimizer = torch.optim.AdamW(model.parameters(), lr=rate(0))
handle = rangewatch.attach(model, optimizer)
for step in range(FIRST + SECOND):
    for group in optimizer.param_groups:
        group["lr"] = rate(step)
    clean, grainy = films(12)
    loss = F.l1_loss(grainy - model(grainy), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 103 < step < 110 or step == 199:
        print(step, loss.item(), "rate", rate(step), flush=True)
    handle.log(loss=loss.item(), lr=rate(step))
handle.detach()
