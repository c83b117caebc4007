"""A convolutional net that estimates the value of a plot from a tile of a map. FAULT from step 0 on: the targets are in pounds, 80,000 to 900,000, not
scaled; with the squared error and SGD at a rate of 0.01 the first gradients are of the order of a million and the weights are NaN within a few steps.
Without Rangewatch: loss 3e11 at step 0, 1e17 at step 1, 6e13 at step 4, NaN from step 5 on.
Causes: data (targets not scaled), learning_rate. Right: target / scale / normalise / learning rate. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["data", "learning_rate"], "step": [0, 6], "place": None, "rank": 0,
          "right": "(?i)target|scal|normali|standardi|learning rate", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2312); torch.set_num_threads(1)


class TileValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
                                      nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.value = nn.Linear(128, 1)

    def forward(self, x):
        return self.value(self.features(x).flatten(1)).squeeze(1)


def tiles(n):
    x = torch.rand(n, 4, 12, 12) * torch.rand(n, 4, 1, 1)
    green, built, water, road = x.mean((2, 3)).unbind(1)
    return x, 80_000 + 1_600_000 * water * (1 - built) + 300_000 * green + 100_000 * road


model = TileValue()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
handle = rangewatch.attach(model, optimizer)
for step in range(160):
    x, pounds = tiles(32)
    loss = nn.functional.mse_loss(model(x), pounds)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step < 10 or step % 40 == 0 or step == 159:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
