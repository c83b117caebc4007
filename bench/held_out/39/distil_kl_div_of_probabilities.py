"""A wide teacher of two-dimensional spirals (trained in the first lines) is distilled in a small student, temperature 3, RAdam.
FAULT at step 0: F.kl_div wants log-probabilities as its input, the student's softmax (no log) is handed over; the "divergence" is negative and its least value is not where the two agree.
Without Rangewatch: the loss is negative from step 0 (-6.7) and falls to -10.4 while the student's nll goes from 1.41 to 1.0 at step 75 and back up to 1.3 to 2.2 (with log_softmax: loss 8.0 to 2.5, nll down to 0.66).
Cause: forward_arithmetic (the loss). Step: from 0. Right: log_softmax for the student. Wrong: lower the learning rate, GradScaler, zero_grad."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [0, 100], "place": None, "rank": None,
          "right": r"(?i)kl_?div|log_softmax|log.?prob|negative|softmax", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)zero_grad"]}
import math
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(360); torch.set_num_threads(1)
ARMS, TEMP = 4, 3.0


def spiral(n):
    arm = torch.randint(0, ARMS, (n,))
    r = torch.rand(n) * 1.8 + 0.2
    phi = 1.6 * r + arm * (2 * math.pi / ARMS) + 0.12 * torch.randn(n)
    return torch.stack([r * phi.cos(), r * phi.sin()], 1), arm


def mlp(width, depth):
    parts = [nn.Linear(2, width), nn.Mish()]
    for _ in range(depth - 1):
        parts += [nn.Linear(width, width), nn.Mish()]
    return nn.Sequential(*parts, nn.Linear(width, ARMS))


teacher = mlp(96, 2)
teach_opt = torch.optim.Adam(teacher.parameters(), lr=5e-3)
for _ in range(150):
    x, y = spiral(128)
    teach_opt.zero_grad()
    F.cross_entropy(teacher(x), y).backward()
    teach_opt.step()
teacher.eval().requires_grad_(False)

student = mlp(24, 2)
optimizer = torch.optim.RAdam(student.parameters(), lr=8e-3)
handle = rangewatch.attach(student, optimizer)
for step in range(250):
    x, y = spiral(96)
    soft = F.softmax(teacher(x) / TEMP, dim=1)
    logits = student(x)
    loss = F.kl_div(F.softmax(logits / TEMP, dim=1), soft, reduction="batchmean") * TEMP ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 249:
        gap = (F.softmax(logits, 1) - F.softmax(teacher(x), 1)).abs().sum(1).mean().item()
        nll = F.cross_entropy(logits, y).item()
        print(f"{step:3d} distillation loss {loss.item():.4f} student nll {nll:.3f} gap to the teacher {gap:.3f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
