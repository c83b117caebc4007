"""A residual convolutional net that reads the hour on a clock's face, under a cosine schedule with warm restarts. HEALTHY: odd is that the rate jumps by a factor of about a hundred at steps 65,
130 and 195 and the loss rises for a few steps each time (the net is small and the noise gives it a floor), then falls below where it was.
Figures: loss 2.46 to 0.348 at step 64, 0.40 at step 70, 0.336 at step 129, 0.365 at step 142, 0.320 at step 194, 0.309 at step 259 (the floor of the smoothed labels)."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2136)
torch.set_num_threads(1)
ys, xs = torch.meshgrid(torch.linspace(-1, 1, 14), torch.linspace(-1, 1, 14), indexing="ij")


def clocks(n):
    hour = torch.randint(0, 12, (n,))
    angle = (hour * 0.5236 + 0.08 * torch.randn(n))[:, None, None]
    along, across = xs * angle.cos() + ys * angle.sin(), -xs * angle.sin() + ys * angle.cos()
    hand = ((along > 0) & (along < 0.8)) * torch.exp(-(across / 0.15) ** 2)
    return (hand + 0.3 * torch.randn(n, 14, 14))[:, None], hour


class Unit(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.way = nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b))
        self.short = nn.Conv2d(a, b, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.way(x) + self.short(x))


net = nn.Sequential(Unit(1, 12, 2), Unit(12, 24, 2), nn.Flatten(), nn.Linear(384, 12))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=65, eta_min=1e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(260):
    x, y = clocks(48)
    loss = F.cross_entropy(net(x), y, label_smoothing=0.05)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 13 == 12 or step in (0, 66, 70, 131, 196):
        print(step, loss.item(), "rate", schedule.get_last_lr()[0], flush=True)
    handle.log(loss=loss.item())
handle.detach()
