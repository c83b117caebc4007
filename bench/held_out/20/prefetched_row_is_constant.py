"""A temporal convolution that finds faults of bearings by their vibration; the loader standardises each recording and works three batches ahead of the
training. FAULT at step 105 (loaded at step 102): one sensor was unplugged, its row is constant, its deviation 0, and 0/0 is NaN.
Without Rangewatch: loss 1.45 to 0.035 at step 104, NaN from step 105 on.
Cause: data (NaN in one row of the batch). Step: 105. Right: data / batch / row / deviation / loader. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [102, 106], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "(?i)data|batch|row|deviation|loader|input"}
import collections
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2015); torch.set_num_threads(1)
beat = torch.tensor([0.31, 0.47, 0.66, 0.92])
tick = torch.arange(80.0)


def recordings(n):
    number = 0
    while True:
        y = torch.randint(0, 4, (n,))
        x = 40 + 3 * torch.sin(beat[y, None] * tick + 6.28 * torch.rand(n, 1)) + 2 * torch.randn(n, 80)
        if number == 105:
            x[7] = 20.0
        yield (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True), y
        number += 1


def ahead(source, depth=3):
    queue = collections.deque(next(source) for _ in range(depth))
    while True:
        queue.append(next(source))
        yield queue.popleft()


model = nn.Sequential(nn.Conv1d(1, 16, 9), nn.ReLU(), nn.Conv1d(16, 16, 9, dilation=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))
optimizer = torch.optim.Adamax(model.parameters(), lr=8e-3)
handle = rangewatch.attach(model, optimizer)
for step, (x, y) in enumerate(ahead(recordings(32))):
    if step == 200:
        break
    loss = F.cross_entropy(model(x[:, None]), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 103 < step < 108 or step == 199:
        print(step, loss.item(), "NaN in batch", int(x.isnan().sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
