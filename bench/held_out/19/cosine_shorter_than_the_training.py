"""A net that foretells the next position of a pendulum on a cart, by SGD with a cosine schedule. FAULT from step 80 on: T_max is 80, though the training
has 170 steps (the number of steps of an older run); at step 80 the rate is 0, and from there PyTorch's cosine rises again up to the full rate at step 160.
Without Rangewatch: on much data 1.75 at step 0, 0.196 to 0.198 at steps 80 to 100, 0.255 at step 140, 0.338 at step 169, where the training ends at the full
rate.
Cause: learning_rate. Step: 80 or later. Right: schedule / T_max / learning rate. Wrong: GradScaler, mask, data."""
EXPECT = {"cause": ["learning_rate", "(none)", ""], "step": [60, 169], "place": None, "rank": 0, "least": "info",
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)skip the batch"],
          "right": "(?i)schedul|T_max|learning.?rate|\\blr\\b"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1929); torch.set_num_threads(1)


def swings(n):
    state = torch.randn(n, 4)
    start = state
    for _ in range(5):
        place, speed, angle, spin = state.unbind(1)
        state = torch.stack((place + 0.1 * speed, speed - 0.1 * angle.sin(), angle + 0.1 * spin, spin + 0.3 * angle.sin() * angle.cos()), 1)
    return torch.cat((start, torch.randn(n, 4)), 1), (state - start) * 3 + 0.3 * torch.randn(n, 4)


model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=80)
handle = rangewatch.attach(model, optimizer)
for step in range(170):
    x, y = swings(24)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item(), lr=schedule.get_last_lr()[0])
    if step % 20 == 0 or step == 169:
        with torch.no_grad():
            x, y = swings(2000)
            print(step, loss.item(), "on much data", F.mse_loss(model(x), y).item(), "rate", schedule.get_last_lr()[0], flush=True)
    schedule.step()
handle.detach()
