"""A forecaster of wind with SGDR: CosineAnnealingWarmRestarts(T_0=30, T_mult=2) takes the rate to nearly 0 and back to the whole 0.1 at steps 30 and 90; after
each restart the loss is somewhat higher for a while. HEALTHY.
Without Rangewatch: loss 0.55 to 0.16 at step 29, 0.060 at 89, 0.065 at 95, 0.033 at 150, 0.039 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1343); torch.set_num_threads(1)


class WindNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = nn.Conv1d(2, 24, 5, padding=2)
        self.net = nn.Sequential(nn.Linear(24 * 20, 48), nn.SiLU(), nn.Linear(48, 2))

    def forward(self, x):
        return self.net(F.silu(self.see(x)).flatten(1))


def winds(n):
    t = torch.arange(23) / 6
    speed, phase = 0.5 + torch.rand(n, 2, 1), 6.2832 * torch.rand(n, 2, 1)
    wind = torch.sin(speed * t + phase) + 0.1 * torch.randn(n, 2, 23)
    return wind[:, :, :20], wind[:, :, 22]


model = WindNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=30, T_mult=2)
handle = rangewatch.attach(model, optimizer)
for step in range(210):
    x, y = winds(32)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 30 == 0 or step in (29, 35, 89, 95, 209):
        print(step, loss.item(), "rate", schedule.get_last_lr()[0], flush=True)
    handle.log(loss=loss.item())
handle.detach()
