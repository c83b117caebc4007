"""DINO on small pictures: a teacher by moving average without gradients, its outputs centred and sharpened more and more, the student's last layer with a
fixed norm and frozen for 30 steps (its gradients set to None). The loss stands still at first, then falls with the temperature. HEALTHY.
Without Rangewatch: loss 3.31, 3.26 at step 20, 0.53 at step 80, 0.008 at the end; 14 to 22 prototypes are in use throughout, so nothing has collapsed."""
EXPECT = {"healthy": True}
import copy
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(838); torch.set_num_threads(1)
PROTOTYPES = 64
things = torch.randn(24, 1, 12, 12)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.GELU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GELU(),
                                  nn.Flatten(), nn.Linear(288, 48))
        self.prototypes = nn.utils.parametrizations.weight_norm(nn.Linear(48, PROTOTYPES, bias=False))
        self.prototypes.parametrizations.weight.original0.data.fill_(1.0)
        self.prototypes.parametrizations.weight.original0.requires_grad_(False)  # the last layer's norm is fixed, as in DINO

    def forward(self, x):
        return self.prototypes(F.normalize(self.body(x), dim=1))


class DINO(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = Encoder()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(PROTOTYPES))


def view(x):
    return x * (torch.rand(len(x), 1, 12, 12) > 0.25) + 0.2 * torch.randn(len(x), 1, 12, 12)


model = DINO()
optimizer = torch.optim.AdamW([p for p in model.student.parameters() if p.requires_grad], lr=2e-3, weight_decay=0.04)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x = things[torch.randint(0, 24, (32,))]
    a, b = view(x), view(x)
    warm = min(1.0, step / 80)
    temperature = 0.07 - 0.03 * warm  # the teacher gets sharper
    with torch.no_grad():
        ta, tb = model.teacher(a), model.teacher(b)
        pa, pb = (((t - model.centre) / temperature).softmax(1) for t in (ta, tb))
    sa, sb = model.student(a) / 0.1, model.student(b) / 0.1
    loss = -0.5 * ((pa * sb.log_softmax(1)).sum(1).mean() + (pb * sa.log_softmax(1)).sum(1).mean())
    optimizer.zero_grad()
    loss.backward()
    if step < 30:  # the last layer is frozen at first
        for p in model.student.prototypes.parameters():
            p.grad = None
    optimizer.step()
    with torch.no_grad():
        keep = 1 - 0.004 * (math.cos(math.pi * step / 260) + 1) / 2
        model.centre.mul_(0.9).add_(torch.cat([ta, tb]).mean(0), alpha=0.1)
        for t, s in zip(model.teacher.parameters(), model.student.parameters()):
            t.mul_(keep - 0.02).add_(s, alpha=1 - keep + 0.02)
    if step % 20 == 0 or step == 259:
        entropy = -(pa * (pa + 1e-12).log()).sum(1).mean().item()
        print(step, loss.item(), "entropy of the teacher", entropy, "prototypes in use", ta.argmax(1).unique().numel(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
