"""Right: a net for the grade of wool whose base (taken over from another task) is frozen for 100 steps, with no gradient and no update, and is then thawed with a tenth
of the rate in a group of its own, as the recipe says. A projection of random features is never trained at all.
Without Rangewatch: loss 1.81 to 1.63 at step 100 with the head alone, 1.27 at step 120, 0.67 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1620); torch.set_num_threads(1)
grades = torch.randn(20, 6)


class Wool(nn.Module):
    def __init__(self):
        super().__init__()
        self.random = nn.Linear(20, 64)
        self.base = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 6)

    def forward(self, x):
        return self.head(self.base(torch.sin(2 * self.random(x))))


def fleeces(n):
    x = torch.randn(n, 20)
    return x, (x @ grades + 0.3 * torch.randn(n, 6)).argmax(1)


model = Wool()
model.random.requires_grad_(False)
model.base.requires_grad_(False)
optimizer = torch.optim.Adam([{"params": model.head.parameters(), "lr": 1e-2}, {"params": model.base.parameters(), "lr": 1e-3}])
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 100:
        model.base.requires_grad_(True)
    x, y = fleeces(128)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
