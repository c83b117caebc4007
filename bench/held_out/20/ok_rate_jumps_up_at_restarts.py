"""HEALTHY: warm restarts (SGDR): the rate of SGD falls along a cosine to a hundredth and jumps back up at steps 30 and 90; the loss has a bump after each
restart and is lower at the end of each round.
Without Rangewatch: loss 2.08, 0.49 at step 29, 0.58 at step 31, 0.25 at step 89, 0.40 at step 120, 0.24 at the end.
Right: nothing above info."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2038); torch.set_num_threads(1)
ends = torch.randn(7, 2, 3)


class Gestures(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(3, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2),
                                 nn.Conv1d(16, 32, 3), nn.BatchNorm1d(32), nn.ReLU())
        self.name = nn.Linear(32, 7)

    def forward(self, x):
        return self.name(self.net(x).mean(2))


def gestures(n):
    y, t = torch.randint(0, 7, (n,)), torch.linspace(0, 1, 24)[:, None]
    path = ends[y, 0][:, None] * torch.sin(3.14 * t) + ends[y, 1][:, None] * t
    return (path + 2.2 * torch.randn(n, 24, 3)).transpose(1, 2), y


model = Gestures()
optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=30, T_mult=2, eta_min=0.0015)
handle = rangewatch.attach(model, optimizer)
for step in range(210):
    x, y = gestures(48)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (29, 31, 89, 91, 209):
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    schedule.step()
    handle.log(loss=loss.item())
handle.detach()
