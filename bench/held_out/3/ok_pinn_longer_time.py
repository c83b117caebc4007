"""A physics-informed net for the heat equation in float64, second derivatives by autograd; the time it is asked for grows from 0.1 to 0.4 to 1 at
steps 80 and 160, and the initial condition's weight falls from 100 to 10 at step 80. HEALTHY: the loss jumps where the task becomes larger or its
weights change, gradients differ by orders of magnitude between the terms. Without Rangewatch:
loss 42.7 to 0.60, 0.51 to 0.34, 1.10 to 0.25; the error at the longest time 0.88, then 0.28 to 0.17, then 0.74 to 0.23."""
EXPECT = {"healthy": True}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(43); torch.set_num_threads(1); torch.set_default_dtype(torch.float64)


class Heat(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, d), nn.Tanh(), nn.Linear(d, d), nn.Tanh(), nn.Linear(d, d), nn.Tanh(), nn.Linear(d, 1))

    def forward(self, x, t):
        return x * (1 - x) * self.net(torch.cat([x, t], 1))  # 0 at both ends


model = Heat()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
watch = rangewatch.attach(model, optimizer)
for step in range(240):
    longest, weight = (0.1, 100.0) if step < 80 else (0.4, 10.0) if step < 160 else (1.0, 10.0)
    x, t = torch.rand(96, 1, requires_grad=True), (longest * torch.rand(96, 1)).requires_grad_()
    u = model(x, t)
    du_dt, du_dx = torch.autograd.grad(u.sum(), (t, x), create_graph=True)
    curvature = torch.autograd.grad(du_dx.sum(), x, create_graph=True)[0]
    start = torch.rand(64, 1)
    initial = (model(start, torch.zeros_like(start)) - torch.sin(math.pi * start)).square().mean()
    loss = (du_dt - 0.1 * curvature).square().mean() + weight * initial
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or step in (79, 159, 239):
        with torch.no_grad():
            t = torch.full((50, 1), longest); x = torch.linspace(0, 1, 50)[:, None]
            error = (model(x, t) - math.exp(-0.1 * math.pi**2 * longest) * torch.sin(math.pi * x)).abs().max()
        print(step, round(loss.item(), 5), "error", round(error.item(), 4))
