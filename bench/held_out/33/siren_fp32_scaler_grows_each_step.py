"""A small SIREN draws a one-dimensional signal in plain float32 (no autocast), yet with a GradScaler left over from a mixed run, whose settings are: growth_interval=1, backoff_factor=0.9.
FAULT: nothing overflows in float32 until the scale is near 2**127: the scale doubles each step, and from about step 112 on the scaled gradients are inf, the steps are
skipped and the scale backs off by a tenth only: six of seven steps are lost.
Without Rangewatch: loss (a sum over 128 points) 74 to 2.6 at step 100 and 2.6 at the end; 131 steps of the last 150 are skipped.
Cause: loss_scale. Step: 105 to 125. Right: GradScaler / scale / growth. Wrong: lower the learning rate, attention mask, NaN in the input."""
EXPECT = {"cause": ["loss_scale"], "step": [60, 180], "place": None, "rank": None,
          "right": "(?i)scaler|scale|growth", "wrong": ["[Ll]ower the learning rate", "attention mask", "NaN in the input"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3315); torch.set_num_threads(1)


class Sine(nn.Module):
    def __init__(self, a, b, omega):
        super().__init__()
        self.lin, self.omega = nn.Linear(a, b), omega
        bound = (6 / a) ** 0.5 / omega if a > 1 else 1.0
        nn.init.uniform_(self.lin.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.omega * self.lin(x))


net = nn.Sequential(Sine(1, 48, 12.0), Sine(48, 48, 4.0), nn.Linear(48, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 16, growth_interval=1, growth_factor=2.0, backoff_factor=0.9)
handle = rangewatch.attach(net, optimizer)
skipped = 0
for step in range(260):
    t = torch.rand(128, 1) * 2 - 1
    y = torch.sin(9 * t) * torch.exp(-t ** 2) + 0.5 * torch.sign(torch.sin(5 * t))
    loss = F.mse_loss(net(t), y, reduction="sum")
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 20 == 0 or step == 259:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
