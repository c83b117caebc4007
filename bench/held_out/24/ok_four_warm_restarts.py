"""A small ConvNeXt-like net counts the corners of polygons, SGD with cosine warm restarts each 55 steps. HEALTHY: at each restart the rate goes up a hundredfold to its peak (which
the net bears) and the loss has a small hump.
Without Rangewatch: loss 1.99 to 0.008; from 0.22 to 0.64 at the restart at step 111."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2446); torch.set_num_threads(1)


class Next(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.far = nn.Conv1d(c, c, 7, padding=3, groups=c)
        self.norm, self.wide, self.thin = nn.GroupNorm(1, c), nn.Conv1d(c, 3 * c, 1), nn.Conv1d(3 * c, c, 1)

    def forward(self, h):
        return h + self.thin(F.gelu(self.wide(self.norm(self.far(h)))))


def polygons(n):
    k = torch.randint(0, 4, (n,))
    corners = (k + 3)[:, None]
    angle = torch.linspace(0, 6.2832, 65)[:-1] + 6.2832 * torch.rand(n, 1)
    sector = 6.2832 / corners
    radius = torch.cos(sector / 2) / torch.cos(angle % sector - sector / 2)
    return (radius - radius.mean(1, keepdim=True))[:, None] * 4 + 0.25 * torch.randn(n, 1, 64), k


net = nn.Sequential(nn.Conv1d(1, 24, 4, 4), Next(24), Next(24), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.LayerNorm(96), nn.Linear(96, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=55, eta_min=2e-4)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    x, k = polygons(48)
    loss = F.cross_entropy(net(x), k)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 15 == 0 or step % 55 in (53, 54, 0, 1, 2):
        print(step, loss.item(), schedule.get_last_lr()[0], flush=True)
    handle.log(loss=loss.item())
handle.detach()
