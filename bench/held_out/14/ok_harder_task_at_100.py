"""A curriculum: from step 100 on the sums are over 8 instead of 4 numbers; the loss rises once and falls again. HEALTHY.
Without Rangewatch: loss 3.15 to 0.076 at step 99, 0.97 at step 100, 0.065 at step 200."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1444); torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x = torch.rand(64, 8)
    x[:, 4:] *= step >= 100
    loss = F.mse_loss(model(x)[:, 0], (x ** 2).sum(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 104:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
