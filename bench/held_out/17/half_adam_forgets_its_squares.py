"""A net that forecasts how far a ball rolls. FAULT at step 100: to spare memory the second stage goes on wholly in float16, with a fresh Adam whose eps is
raised to 1e-4 for float16. A thousandth (1 - beta2) of the square of a gradient below 5e-3 is under half of the smallest float16 (6e-8): the second moment
is 0, and the step is the rate times the first moment divided by eps, tens of times too long.
Without Rangewatch: loss 0.22 to 0.019 at step 99, 0.021 at step 100, where 4454 of 4481 second moments are 0; 4.98 at step 101, 0.44 at step 106, 0.056
at step 120, 0.013 at the end; in float32 it is 0.005 at the end.
Cause: optimizer (the second moments underflow; learning_rate, steps too long, would do). Step: 100 to 115. Right: float16 / underflow / second moment /
float32 / eps. Wrong: attention mask."""
EXPECT = {"cause": ["optimizer", "learning_rate"], "step": [99, 115], "place": None, "rank": 0,
          "wrong": ["attention mask", "input (data )?contains"],
          "right": "float16|fp16|underflow|second moment|exp_avg_sq|float32|half|eps|optimi[sz]er"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1624); torch.set_num_threads(1)


def rolls(n):
    speed, slope, grass = torch.rand(n), 0.2 * torch.randn(n), 0.5 + torch.rand(n)
    far = speed ** 2 / grass + slope * speed
    return torch.stack((speed, slope, grass), 1), far[:, None]


model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
first = torch.optim.Adam(model.parameters(), lr=3e-3)
second = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-4)
handle = rangewatch.attach(model, [first, second])
optimizer, dtype = first, torch.float32
for step in range(200):
    if step == 100:
        optimizer, dtype = second, torch.float16
        model.to(dtype)
    x, far = rolls(256)
    loss = F.mse_loss(model(x.to(dtype)).float(), far)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 108 or step == 199:
        lost = sum(int((optimizer.state[p]["exp_avg_sq"] == 0).sum()) for p in model.parameters())
        print(step, loss.item(), "second moments that are 0:", lost, "of", sum(p.numel() for p in model.parameters()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
