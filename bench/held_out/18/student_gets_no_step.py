"""A small net learns from a large teacher to name the genre of a piece of music. FAULT from the first step on: after a change of names the optimizer was
given the teacher's parameters; the student's gradients are computed and cleared, and the student never changes.
Without Rangewatch: loss 0.265 to 0.285 (0.26 to 0.36 between), no weight of the student changes; with its own parameters it is 0.095 at the end.
Cause: optimizer. Step: from 0 on. Right: optimizer / parameters of the model. Wrong: GradScaler, mask, lower the rate, clip."""
EXPECT = {"cause": ["optimizer"], "step": [0, 60], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "(?i)lower the learning rate"],
          "right": "(?i)optimi[sz]er|parameters\\("}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1816); torch.set_num_threads(1)
GENRES = 6


def listener(width):
    return nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, GENRES))


teacher, student = listener(128), listener(24)
optimizer = torch.optim.Adagrad(teacher.parameters(), lr=0.02)
handle = rangewatch.attach(student, optimizer)
for step in range(180):
    piece = torch.randn(48, 32)
    with torch.no_grad():
        wanted = F.softmax(4 * teacher(piece), 1)
    loss = F.kl_div(F.log_softmax(student(piece), 1), wanted, reduction="batchmean")
    student.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), "first weight of the student", student[0].weight[0, 0].item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
