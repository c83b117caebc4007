"""Distillation of a convolutional teacher (batch norm, dropout 0.5; frozen, in eval mode) into a small student; both live in one module. FAULT: after
the validation at step 100 system.train() puts the teacher into train mode too: dropout makes its targets noisy and its batch norms use the batch
and move their statistics. Without Rangewatch: loss 6.8 to 0.19 at step 99; 0.41 at step 100, and 0.3 to 0.56 to the end.
Report: yxuansu/TaCL#11 (the teacher does not eval(), the same input gives different results), vrvlive/knowlege-distillation#2, clovaai/overhaul-
distillation#37.
Cause: mode (dropout and batch norm of the teacher in train mode). Place: in the teacher. Right: teacher.eval() after train(). Wrong: learning rate,
data, precision, mask."""
EXPECT = {"cause": ["eval"], "step": [98, 130], "place": "teacher.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler", "leave out samples"],
          "right": "eval|train mode|train\\(\\)|dropout|[Bb]atch ?[Nn]orm|running|teacher"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(15); torch.set_num_threads(1)


def net(width, drop):
    return nn.Sequential(nn.Conv2d(1, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width),
                         nn.ReLU(), nn.Flatten(), nn.Dropout(drop), nn.Linear(18 * width, 10))


class Distillation(nn.Module):
    def __init__(self, teacher):
        super().__init__()
        self.teacher, self.student = teacher.requires_grad_(False).eval(), net(6, 0.0)

    def forward(self, x):
        with torch.no_grad():
            target = (self.teacher(x) / 2).softmax(-1)
        return 4 * F.kl_div((self.student(x) / 2).log_softmax(-1), target, reduction="batchmean")


proto = torch.randn(10, 1, 12, 12)


def batch(n=48):
    y = torch.randint(0, 10, (n,))
    return proto[y] + 1.2 * torch.randn(n, 1, 12, 12), y


teacher = net(16, 0.5)
pretraining = torch.optim.Adam(teacher.parameters(), lr=3e-3)
for _ in range(100):
    x, y = batch()
    pretraining.zero_grad()
    F.cross_entropy(teacher(x), y).backward()
    pretraining.step()
system = Distillation(teacher)
optimizer = torch.optim.Adam(system.student.parameters(), lr=3e-3)
watch = rangewatch.attach(system, optimizer)
for step in range(200):
    if step == 100:
        system.eval()
        with torch.no_grad():
            x, y = batch(500)
            print("validation", (system.student(x).argmax(1) == y).float().mean().item())
        system.train()
    loss = system(batch()[0])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 15 == 0 or 97 <= step < 104:
        print(step, round(loss.item(), 4))
