"""A convolutional net with batch norm and dropout, SGD and warm restarts of the cosine: the rate jumps from nearly 0 to 0.1 after steps 39, 119 and 279, and
the loss rises after it. HEALTHY. Without Rangewatch: loss 2.15 to 0.13 at step 119, 1.14 at step 140, 0.11 at step 240."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(627); torch.set_num_threads(1)
kinds = torch.randn(8, 1, 10, 10)
model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 16, 3, stride=2, padding=1),
                      nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(16 * 25, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=40, T_mult=2, eta_min=1e-4)
handle = rangewatch.attach(model, optimizer)
for step in range(280):
    y = torch.randint(0, 8, (32,))
    loss = F.cross_entropy(model(kinds[y] + 2.5 * torch.randn(32, 1, 10, 10)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 20 == 0 or step in (39, 40, 119, 120, 279):
        print(step, loss.item(), optimizer.param_groups[0]["lr"], flush=True)
handle.detach()
