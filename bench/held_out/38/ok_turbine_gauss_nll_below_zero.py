"""A net gives mean and log variance of a turbine's power (Gaussian NLL); the data have little noise, so that the loss goes far below zero; Adam with warm restarts each 60 steps.
HEALTHY: a negative loss is right for a density, and the halts are the restarts of the schedule (steps 60 and 120).
Without Rangewatch: nll 0.03 at step 0, -2.21 at step 60, -2.45 at step 120 and about -3.2 from step 160 on, the mean error 0.36 to 0.019."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(4000)
torch.set_num_threads(1)


class Turbine(nn.Module):
    def __init__(self):
        super().__init__()
        self.wind = nn.Linear(3, 48)
        self.blade = nn.Linear(48, 48)
        self.power = nn.Linear(48, 1)
        self.doubt = nn.Linear(48, 1)

    def forward(self, x):
        h = torch.tanh(self.blade(torch.tanh(self.wind(x))))
        return self.power(h)[:, 0], self.doubt(h)[:, 0].clamp(-9, 4)


def records(n):
    x = torch.rand(n, 3) * 2 - 1
    return x, torch.sigmoid(4 * x[:, 0]) * (1 + 0.2 * x[:, 1]) + 0.02 * torch.randn(n)


net = Turbine()
opt = torch.optim.Adam(net.parameters(), lr=4e-3)
restarts = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 60)
handle = rangewatch.attach(net, opt)
for step in range(180):
    x, y = records(64)
    mean, logvar = net(x)
    loss = 0.5 * (logvar + (y - mean) ** 2 / logvar.exp()).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    restarts.step()
    if step % 20 == 0 or step == 179:
        print(step, f"nll {loss.item():.3f} mean error {(y - mean).abs().mean().item():.4f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
