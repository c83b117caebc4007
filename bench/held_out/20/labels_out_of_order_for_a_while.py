"""A convolutional net that names bird calls by their spectrograms. FAULT at steps 130 to 139: a worker that writes the shards is restarted; for ten batches
the labels come in another order than the pictures. After them it recovers.
Without Rangewatch: loss 0.04 at step 129, 14.8 at step 130, 2.5 (chance) to step 143, 0.61 at step 160, 0.12 at the end.
Cause: data (labels). Step: 130. Right: label / batch / data. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["data"], "step": [129, 140], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "(?i)label|target|batch|data|loader"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2009); torch.set_num_threads(1)
BIRDS = 12
start, sweep = torch.rand(BIRDS) * 12, torch.rand(BIRDS) * 1.2 - 0.6
frames, bands = torch.arange(20.0), torch.arange(16.0)


def calls(n):
    y = torch.randint(0, BIRDS, (n,))
    line = start[y, None] + sweep[y, None] * frames + 0.3 * torch.randn(n, 1)
    x = torch.exp(-((bands[:, None] - line[:, None, :] % 16) ** 2) / 1.5) + 0.3 * torch.randn(n, 16, 20)
    return x[:, None], y


model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(480, BIRDS))
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, y = calls(40)
    if 130 <= step < 140:
        y = y[torch.randperm(len(y))]
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 <= step < 144 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
