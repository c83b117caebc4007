"""A convolutional net that tells the weight of a hive from a day of sound levels. FAULT from step 0 on: the head gives a column (n, 1), the targets are a row
(n,), and the squared difference, written by hand, is broadcast to (n, n): each prediction is compared with all targets, and the net learns the mean.
Without Rangewatch: loss 0.90 at step 0, 0.76 to 1.29 to the end (the variance of the targets is 1); row by row it is the same; with [:, 0] it is 0.010.
Cause: forward_arithmetic or data (the shapes of loss and target). Step: 0, or any later one (it never gets better than the mean). Right: shape / broadcast /
squeeze / target. Wrong: GradScaler, mask, dead units."""
EXPECT = {"cause": ["forward_arithmetic", "data", ""], "step": [0, 239], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Rr]aise the learning rate"],
          "right": "shape|broadcast|squeeze|column|target|dimension"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1602); torch.set_num_threads(1)
hour = torch.arange(48.0) / 48


class Hive(nn.Module):
    def __init__(self):
        super().__init__()
        self.listen = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 24, 5, padding=2), nn.ReLU())
        self.scale = nn.Linear(48, 1)

    def forward(self, sound):
        h = self.listen(sound[:, None])
        return self.scale(torch.cat((h.mean(2), h.amax(2)), 1))


def hives(n):
    weight = torch.randn(n)
    sound = (1 + 0.5 * weight[:, None]) * torch.exp(-((hour - 0.5) / 0.15) ** 2) + 0.1 * torch.randn(n, 48)
    return sound, weight


model = Hive()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    sound, weight = hives(64)
    estimate = model(sound)
    loss = ((estimate - weight) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "row by row", ((estimate[:, 0] - weight) ** 2).mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
