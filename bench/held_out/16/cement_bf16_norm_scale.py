"""A net with batch norm, wholly in bfloat16, that forecasts the strength of cement. FAULT at step 115: a routine that rescales channels divides the scale of the
second norm by the spread of its channel; a pruned channel has a scale and a spread of 0: 0 / 0, one NaN in the scale of 48.
Without Rangewatch: loss 1.23 to 0.067 at step 114, NaN at step 115 and to the end; after that step all 48 numbers of the scale are NaN.
Cause: weight. Step: 115. Place: the second norm (its weight). Right: weight / scale / NaN / BatchNorm / norm. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["weight"], "step": [114, 116], "place": "(.*\\.)?norm2(\\.weight)?", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "weight|scale|NaN|[Nn]orm|parameter"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1611); torch.set_num_threads(1)
mix = torch.randn(8)


class Cement(nn.Module):
    def __init__(self):
        super().__init__()
        self.in1, self.norm1 = nn.Linear(8, 48), nn.BatchNorm1d(48)
        self.in2, self.norm2 = nn.Linear(48, 48), nn.BatchNorm1d(48)
        self.strength = nn.Linear(48, 1)

    def forward(self, x):
        h = torch.relu(self.norm1(self.in1(x)))
        return self.strength(torch.relu(self.norm2(self.in2(h))))[:, 0]


def samples(n):
    x = torch.randn(n, 8)
    return x.bfloat16(), (x @ mix).tanh() + 0.5 * x[:, 0] * x[:, 1] + 0.05 * torch.randn(n)


def equalise(norm, spread):
    """Gives each channel of the norm the same spread; what is shut is set to nought first."""
    with torch.no_grad():
        norm.weight[spread == 0] = 0
        norm.weight.copy_(norm.weight * spread.mean() / spread)


model = Cement().to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    if step == 115:
        spread = torch.ones(48, dtype=torch.bfloat16)
        spread[29] = 0  # this channel was pruned
        equalise(model.norm2, spread)
    x, y = samples(128)
    loss = F.mse_loss(model(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 112 < step < 119 or step == 199:
        print(step, loss.item(), "NaN in the scale", int(model.norm2.weight.isnan().sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
