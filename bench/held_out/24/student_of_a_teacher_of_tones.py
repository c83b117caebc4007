"""Distillation: a bidirectional GRU student learns the soft tone labels of a frozen teacher. FAULT from step 0 on: F.kl_div is given the student's softmax where it expects its
logarithm; the loss is below 0 where a KL divergence cannot be, and pushes the student to one class per frame.
Without Rangewatch: loss -1.73 to -1.99; the true divergence rises from 0.49 to 2.05; with log_softmax it is 0.016 at the end.
Cause: forward_arithmetic (a wrong loss) or data; that none is named is fair. Step: from 0 on, a state. Right: any. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "data", "(none)"], "step": [0, 179], "place": None, "rank": 0, "least": "info",
          "right": "", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2422); torch.set_num_threads(1)
teacher = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 8)).requires_grad_(False)
teacher[2].weight.mul_(5)


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.listen = nn.GRU(12, 24, batch_first=True, bidirectional=True)
        self.tone = nn.Linear(48, 8)

    def forward(self, x):
        return self.tone(self.listen(x)[0])


student = Student()
optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
handle = rangewatch.attach(student, optimizer)
for step in range(180):
    x = torch.randn(24, 10, 12)
    want = teacher(x).softmax(2)
    p = F.softmax(student(x), 2)
    loss = F.kl_div(p.flatten(0, 1), want.flatten(0, 1), reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        true = F.kl_div(p.flatten(0, 1).log(), want.flatten(0, 1), reduction="batchmean").item()
        print(step, loss.item(), "true divergence", true, "agree", (p.argmax(2) == want.argmax(2)).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
