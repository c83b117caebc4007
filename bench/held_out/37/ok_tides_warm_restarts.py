"""A liquid-like recurrent cell forecasts a tide gauge; SGD with Nesterov momentum under cosine annealing with warm restarts (SGDR, every 60 steps from 1e-5 back to 0.05).
HEALTHY: the rate jumps some thousandfold at steps 60, 120, 180 and the loss may rise a little there; that is what the restarts are for.
Without Rangewatch: mse below 0.005 at step 40, between 0.004 and 0.008 to the end, with the higher values after a restart."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3721); torch.set_num_threads(1)


def tides(n=32, length=20):
    t = torch.arange(length + 1) + 100 * torch.rand(n, 1)
    level = torch.sin(0.506 * t) + 0.4 * torch.sin(0.524 * t) + 0.2 * torch.sin(0.262 * t) + 0.03 * torch.randn(n, length + 1)
    return level[:, :-1, None], level[:, -1]


class Tide(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inlet, self.swirl, self.outlet = nn.Linear(1, d), nn.Linear(d, d), nn.Linear(d, 1)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.swirl.in_features)
        for k in range(x.shape[1]):
            h = h + 0.5 * (torch.tanh(self.inlet(x[:, k]) + self.swirl(h)) - h)
        return self.outlet(h)[:, 0]


tide = Tide()
sgd = torch.optim.SGD(tide.parameters(), lr=0.05, momentum=0.9, nesterov=True)
cosine = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(sgd, T_0=60, eta_min=1e-5)
handle = rangewatch.attach(tide, sgd)
for step in range(240):
    x, y = tides()
    loss = nn.functional.mse_loss(tide(x), y)
    sgd.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(tide.parameters(), 1.0)
    sgd.step()
    cosine.step()
    if step % 20 == 0 or step in (58, 59, 61) or step == 239:
        print(step, f"mse {loss.item():.5f} next lr {cosine.get_last_lr()[0]:.1e}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
