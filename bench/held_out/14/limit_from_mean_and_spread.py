"""A convolutional net with SGD; gradients are clipped at an adaptive limit, the running mean of the norm less its running deviation. FAULT at step 110: from
step 100 on the noise grows (smaller batches), the deviation passes the mean, and the limit is negative: steps go uphill.
Without Rangewatch: loss 1.83 to 0.41 at step 99; the limit is 0.90 at step 109 and -3.7 at step 110; loss 114 at step 120, 5.5e36 at
step 140, then NaN.
Variant of: limit_of_the_clip_falls_below_zero (there a schedule, here a limit out of statistics).
Cause: clip. Step: 110. Right: clip / limit / max_norm / negative. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["clip"], "step": [100, 150], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "corrupt"],
          "right": "clip|limit|max_norm|negative"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1416); torch.set_num_threads(1)
tile = torch.randn(6, 1, 8, 8)
model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.Flatten(),
                      nn.Linear(24 * 16, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
mean, square = 2.0, 4.2
for step in range(220):
    n = 64 if step < 100 else 2
    y = torch.randint(0, 6, (n,))
    x = tile[y] + 2.0 * torch.randn(n, 1, 8, 8)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    norm = sum(p.grad.norm() ** 2 for p in model.parameters()).sqrt().item()
    mean, square = 0.95 * mean + 0.05 * norm, 0.95 * square + 0.05 * norm ** 2
    limit = mean - max(square - mean ** 2, 0.0) ** 0.5
    nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    if step % 20 == 0 or 98 < step < 112:
        print(step, loss.item(), "norm", norm, "limit", limit, flush=True)
    handle.log(loss=loss.item())
handle.detach()
