"""A sparse code: most units of the code are 0 for most rows, by a penalty that is meant. HEALTHY.
Without Rangewatch: loss 0.75 to 0.006."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1445); torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
atoms = torch.randn(24, 16)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x = (torch.rand(64, 24) * (torch.rand(64, 24) < 0.1)) @ atoms
    code = model[1](model[0](x))
    loss = F.mse_loss(model[2](code), x) + 0.002 * code.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 104:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
