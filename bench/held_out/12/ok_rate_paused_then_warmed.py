"""Two phases of one run: a cosine to 0 up to step 120, ten steps at a rate of exactly 0 in which only batch norms gather statistics of the new set, then
a warmup of ten steps and a second, smaller cosine. HEALTHY.
Without Rangewatch: loss 1.87 to 0.06 at step 119, 0.23 at step 120, 0.10 at step 140, 0.07 at the end."""
EXPECT = {"healthy": True}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1237); torch.set_num_threads(1)
COINS = 6
face = torch.randn(COINS, 1, 10, 10)


def rate_at(step):
    if step < 120:
        return 0.05 * 0.5 * (1 + math.cos(math.pi * step / 119))
    if step < 130:
        return 0.0
    if step < 140:
        return 0.02 * (step - 129) / 10
    return 0.02 * 0.5 * (1 + math.cos(math.pi * (step - 140) / 99))


model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24),
                      nn.ReLU(), nn.Flatten(), nn.Linear(600, COINS))
optimizer = torch.optim.SGD(model.parameters(), lr=rate_at(0), momentum=0.9, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step) / rate_at(0))
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    y = torch.randint(0, COINS, (32,))
    x = face[y] + 2.0 * torch.randn(32, 1, 10, 10)
    if step >= 120:
        x = 1.3 * x + 0.5
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 20 == 0 or step in (119, 125, 239):
        print(step, loss.item(), optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
