"""Distillation from a frozen teacher in one wrapper module. FAULT from step 0: the optimizer is made over the teacher's parameters,
which are frozen; the student is in none. Cause: optimizer, place student.* (or teacher.* named as those no backward reaches), any step.
Right: give the student's parameters to the optimizer. Wrong: learning rate, underflow, dead units, vanishing gradient advice."""
EXPECT = {"cause": ["optimizer"], "step": None, "place": r"(student|teacher).*", "rank": None,
          "wrong": ["[Ll]ower the learning", "[Mm]ask", "residual", "LeakyReLU"], "right": "optimizer"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

def mlp(width, depth):
    layers, d = [], 20
    for _ in range(depth):
        layers += [nn.Linear(d, width), nn.BatchNorm1d(width), nn.Mish()]
        d = width
    return nn.Sequential(*layers, nn.Linear(d, 6))

class Distiller(nn.Module):
    def __init__(self, temperature=3.0):
        super().__init__()
        self.teacher, self.student, self.t = mlp(96, 3), mlp(24, 2), temperature
        self.teacher.requires_grad_(False).eval()
    def forward(self, x, y):
        with torch.no_grad():
            soft = F.softmax(self.teacher(x) / self.t, 1)
        out = self.student(x)
        kd = F.kl_div(F.log_softmax(out / self.t, 1), soft, reduction="batchmean") * self.t ** 2
        return 0.7 * kd + 0.3 * F.cross_entropy(out, y), out

distiller = Distiller()
opt = torch.optim.Adam(distiller.teacher.parameters(), 1e-3)      # should be .student
rangewatch.attach(distiller, opt)
centres = torch.randn(6, 20)
for step in range(250):
    y = torch.randint(0, 6, (48,))
    loss, _ = distiller(centres[y] + torch.randn(48, 20), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
