"""A regression whose batch falls from 64 to 4 at step 100, with the rate lowered along with it: a noisy loss, nothing else. HEALTHY.
Without Rangewatch: loss 1.58 to 0.017 at step 100, 0.0001 to 0.02 after it."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1441); torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(6, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 100:
        optimizer.param_groups[0]["lr"] = 5e-4
    x = torch.randn(64 if step < 100 else 4, 6)
    y = x[:, :1] * x[:, 1:2] + x[:, 2:3]
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
