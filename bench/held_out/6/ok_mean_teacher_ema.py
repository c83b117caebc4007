"""A mean teacher: the teacher follows the student by a moving average and has no gradients, half of the student's units are dropped, and the weight of the
consistency is ramped up to 8, so that the loss rises at times. HEALTHY. Without Rangewatch: loss 1.63, 0.44 at step 100, 0.65 at step 140, 0.17."""
EXPECT = {"healthy": True}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(634); torch.set_num_threads(1)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 5))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    @torch.no_grad()
    def follow(self, keep):
        for slow, fast in zip(self.teacher.parameters(), self.student.parameters()):
            slow.lerp_(fast, 1 - keep)

    def forward(self, a, b):
        with torch.no_grad():
            said = self.teacher(b).softmax(-1)
        return self.student(a), said


kinds = torch.randn(5, 20)
known = torch.randint(0, 5, (60,))
known_x = kinds[known] + 1.2 * torch.randn(60, 20)
model = Pair()
optimizer = torch.optim.Adam(model.student.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    rows = torch.randint(0, 60, (16,))
    free = kinds[torch.randint(0, 5, (48,))] + 1.2 * torch.randn(48, 20)
    x = torch.cat([known_x[rows], free])
    out, said = model(x + 0.2 * torch.randn_like(x), x + 0.2 * torch.randn_like(x))
    weight = 8.0 * min(1.0, step / 150)  # the consistency is ramped up, so the loss goes up with it
    loss = F.cross_entropy(out[:16], known[rows]) + weight * F.mse_loss(out.softmax(-1), said)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.follow(min(0.99, step / (step + 1)))
    if step % 20 == 0 or step == 299:
        print(step, loss.item(), weight, flush=True)
handle.detach()
