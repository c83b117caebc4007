"""A masked autoencoder of patches with mixer layers over satellite tiles. FAULT at step 105: one tile carries the filler value of a missing measurement, 3.2e38, at
one point of one channel; its sum over the patch exceeds float32, the loss is inf or NaN and the weights follow.
Without Rangewatch: loss 0.70 to 0.18 at step 104, NaN from step 105 on.
Cause: data. Step: 105. Right: batch / input / data / filler. Wrong: GradScaler, attention mask, lower the rate."""
EXPECT = {"cause": ["data"], "step": [104, 106], "place": None, "rank": 0,
          "right": "(?i)batch|input|data|sample", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2407); torch.set_num_threads(1)


class Mixer(nn.Module):
    def __init__(self, patches, width):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
        self.along = nn.Sequential(nn.Linear(width, 96), nn.GELU(), nn.Linear(96, width))

    def forward(self, h):
        h = h + self.across(self.n1(h).transpose(1, 2)).transpose(1, 2)
        return h + self.along(self.n2(h))


class TileCoder(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.hole = nn.Parameter(0.02 * torch.randn(width))
        self.mixers = nn.Sequential(Mixer(16, width), Mixer(16, width))
        self.paint = nn.Linear(width, 48)

    def forward(self, x, hidden):
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.where(hidden[..., None], self.hole, h)
        return self.paint(self.mixers(h))


def tiles(n):
    a = torch.linspace(0, 1, 16)
    u, v, w = torch.randn(3, n, 3, 1, 1)
    return torch.sin(3 * u * a[:, None] + 3 * v * a + w) + 0.05 * torch.randn(n, 3, 16, 16)


model = TileCoder()
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    x = tiles(32)
    target = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(32, 16, 48)
    if step == 105:
        x[11, 1, 6, 9] = 3.2e38
    hidden = torch.rand(32, 16) < 0.25
    error = (model(x, hidden) - target) ** 2
    loss = error[hidden].mean() + 0.2 * error.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or 103 < step < 108 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
