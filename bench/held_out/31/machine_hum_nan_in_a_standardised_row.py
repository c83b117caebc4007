"""A 1-D convnet with BatchNorm tells healthy from worn machines by 48 samples of hum; each row is standardised by its own mean and deviation (Adam, label smoothing). FAULT at step 140: a sensor drops out and the loader gives NaN for one sample of one row;
the row's mean and deviation are NaN, so is the whole row, and BatchNorm spreads it over the batch.
Without Rangewatch: loss 0.94 to 0.23 at step 139, NaN at step 140 and on.
Cause: data. Step: 140. Right: input / NaN / data / loader. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [139, 144], "place": None, "rank": None,
          "right": "(?i)input|data|loader|batch|nan_to_num|preproc|row", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(122); torch.set_num_threads(1)


def loader(step):
    y = torch.randint(0, 2, (48,))
    t = torch.arange(48.0) + 48 * torch.rand(48, 1)
    x = torch.sin(0.5 * t) + 0.5 * y[:, None] * torch.sin(1.7 * t + 1) + 0.5 * torch.randn(48, 48)
    x = 20 * x + 300
    if step == 140:
        x[11, 30] = float("nan")
    return x, y


def standardised(x):
    return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-6)


net = nn.Sequential(nn.Conv1d(1, 12, 5, stride=2), nn.BatchNorm1d(12), nn.ReLU(), nn.Conv1d(12, 16, 5, stride=2), nn.BatchNorm1d(16), nn.ReLU(),
                    nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    x, y = loader(step)
    loss = F.cross_entropy(net(standardised(x)[:, None]), y, label_smoothing=0.05)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 138 < step < 143:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
