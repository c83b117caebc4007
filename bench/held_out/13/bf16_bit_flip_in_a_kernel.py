"""A convolutional net in bfloat16 counts cells, in a loop of its own. FAULT at step 125: the highest bit of the exponent of one weight of the second
convolution flips in memory: 0.05 or so becomes 1e37.
Without Rangewatch: loss 1.80 to 0.040 at step 124, inf at step 125 (the weight 2.0e37), NaN from step 126 on.
Variant of: exponent_bit_flips_under_trainer.
Cause: weight. Step: 125. Place: second. Right: weight / memory / bit / checkpoint. Wrong: lower the learning rate, GradScaler, mask, data."""
EXPECT = {"cause": ["weight"], "step": [124, 126], "place": ".*second.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "weight|\\bbit|memory|checkpoint|parameter|hardware"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1331); torch.set_num_threads(1)
grid = torch.stack(torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij"))


class CellCounter(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 24, 3, padding=1, stride=2)
        self.count = nn.Linear(24, 1)

    def forward(self, x):
        return self.count(F.relu(self.second(F.relu(self.first(x)))).mean((2, 3)))[:, 0]


def slides(n):
    middle, there = 12 * torch.rand(n, 6, 2, 1, 1), (torch.rand(n, 6) < 0.5).float()
    spots = torch.exp(-((grid - middle) ** 2).sum(2) / 2)
    return ((there[:, :, None, None] * spots).sum(1, keepdim=True) + 0.05 * torch.randn(n, 1, 12, 12)).bfloat16(), there.sum(1) / 3


model = CellCounter().bfloat16()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(210):
    if step == 125:
        bits = model.second.weight.data.view(torch.int16)
        bits[7, 4, 1, 2] ^= 1 << 14
    x, y = slides(24)
    loss = F.mse_loss(model(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 123 < step < 128:
        print(step, loss.item(), "greatest weight", model.second.weight.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
