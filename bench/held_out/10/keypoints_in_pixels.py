"""A convolutional net that finds five points of a hand, places given as shares of the picture. FAULT from step 150 on: a second data set joins, whose file
gives the places in pixels (0 to 200) and not as shares; a third of each batch comes from it. The loss jumps 300,000-fold and the net follows.
Without Rangewatch: loss 0.25 to 0.0092 at step 149, 3145 at step 150 (largest target 155), 3303 at step 151, 2330 at the end.
Report: August0424 in tensorflow/models#9892 (coordinates not normalised: the loss is too big), kuangliu/torchcv#30, AliaksandrSiarohin/first-order-model#109.
Cause: data. Step: 150. Right: targets / labels / scale / pixels / batch / normalise. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [149, 152], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "target|label|data|batch|normali[sz]|scale|unit"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1007); torch.set_num_threads(1)
POINTS = 5
axis = torch.linspace(0, 1, 20)
rest = torch.rand(POINTS, 2) * 0.3 - 0.15


class HandNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.SiLU(), nn.MaxPool2d(2))
        self.places = nn.Sequential(nn.Flatten(), nn.Linear(800, 64), nn.SiLU(), nn.Linear(64, 2 * POINTS))

    def forward(self, x):
        return self.places(self.features(x)).unflatten(1, (POINTS, 2))


def hands(n):
    centre, turn = 0.3 + 0.4 * torch.rand(n, 1, 2), 6.2832 * torch.rand(n)
    matrix = torch.stack((turn.cos(), -turn.sin(), turn.sin(), turn.cos()), 1).view(n, 2, 2)
    place = centre + rest @ matrix
    spot = torch.exp(-((axis[:, None] - place[:, :, :1, None]) ** 2 + (axis - place[:, :, 1:, None]) ** 2) / 0.004)
    return (spot * torch.linspace(0.5, 1.5, POINTS)[:, None, None]).sum(1, keepdim=True) + 0.05 * torch.randn(n, 1, 20, 20), place


model = HandNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    x, y = hands(48)
    if step >= 150:
        y[32:] = y[32:] * 200.0  # the rows of the second data set
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or step in (149, 150, 151, 299):
        print(step, loss.item(), "largest target", y.max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
