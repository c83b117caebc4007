"""A mixture-like density net: the loss is a negative log density, passes 0 and goes on below it, as densities may be larger than 1. HEALTHY.
Without Rangewatch: loss 0.10 to -2.57, all finite."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1442); torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(3, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x = torch.rand(64, 3)
    y = 0.5 * x[:, 0] * x[:, 1] + 0.05 * (0.5 + x[:, 2]) * torch.randn(64)
    mean, log_s = model(x).unbind(1)
    log_s = log_s.clamp(-5, 3)
    loss = (log_s + 0.5 * ((y - mean) * (-log_s).exp()) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
