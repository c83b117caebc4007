"""A net with residual blocks and layer norm that forecasts frost from eleven gauges. FAULT from step 95 on: a second network of gauges joins, which writes 1e6
where a value is missing; 3 of 100 values are such, nobody takes them out, and a row with one says nothing after the layer norm but "a million".
Without Rangewatch: loss 0.68 to 0.05 to 0.11 at steps 93 and 94, 0.42 at step 95, 0.38 at step 96, 0.20 to 0.31 to the end.
Cause: data. Step: 95. Right: input / data / missing / outlier / range / batch. Wrong: GradScaler, mask, lower the learning rate."""
EXPECT = {"cause": ["data"], "step": [94, 100], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "input|data|missing|outlier|range|batch|fill|sentinel"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1612); torch.set_num_threads(1)
effect = torch.randn(11)


class Frost(nn.Module):
    def __init__(self):
        super().__init__()
        self.gauges = nn.Linear(11, 64)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(2))
        self.last, self.frost = nn.LayerNorm(64), nn.Linear(64, 1)

    def forward(self, x):
        h = self.gauges(x)
        for block in self.blocks:
            h = h + block(h)
        return self.frost(self.last(h))[:, 0]


def nights(n, second):
    x = torch.randn(n, 11)
    y = ((x @ effect + x[:, 0] * x[:, 3]) > 0).float()
    if second:
        x[torch.rand(n, 11) < 0.03] = 1e6
    return x, y


model = Frost()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y = nights(128, step >= 95)
    loss = F.binary_cross_entropy_with_logits(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 92 < step < 99 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
