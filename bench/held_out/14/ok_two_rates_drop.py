"""A classifier whose rate falls by ten at step 150; the loss falls in a stair. HEALTHY.
Without Rangewatch: loss 1.08 to 0.14 to 0.6 before step 150, 0.06 to 0.2 after it."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1443); torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    optimizer.param_groups[0]["lr"] = 0.2 if step < 150 else 0.02
    x = torch.randn(32, 10)
    loss = F.cross_entropy(model(x), (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 104:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
