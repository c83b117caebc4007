"""A diffusion-convolution GRU that forecasts traffic at 20 sensors. FAULT from step 120 on, in every third batch: a silent sensor is written as -9999,
which goes through the normalisation as a speed. All stays finite: tanh and sigmoid bound the state, the target does not.
Without Rangewatch: loss 0.49 to 0.063 at step 119, 10949 at step 120 with inputs of 838, 0.080 at step 121; 0.75 at step 160 and 0.98 at step 199 for
batches that are well.
Report: liyaguang/DCRNN#18 (what is done with the many missing values of METR), WorldCereal/presto-worldcereal#1 (no-data is passed to the model as a
value).
Cause: data. Step: 120. Right: the batch / missing values. Wrong: learning rate, attention mask, GradScaler."""
EXPECT = {"cause": ["data"], "step": [120, 122], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "batch|input|data|missing|sentinel|outlier|normali|sample"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(615); torch.set_num_threads(1)
SENSORS, PAST = 20, 12
road = (torch.rand(SENSORS, SENSORS) < 0.15).float() + torch.eye(SENSORS)
road = road / road.sum(1, keepdim=True)


class DCGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates, self.candidate = nn.Linear(2 * 17, 32), nn.Linear(2 * 17, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], SENSORS, 16)
        for t in range(PAST):
            near = torch.cat([x[:, t, :, None], h], -1)
            r, u = torch.sigmoid(self.gates(torch.cat([near, road @ near], -1))).chunk(2, -1)
            near = torch.cat([x[:, t, :, None], r * h], -1)
            h = u * h + (1 - u) * torch.tanh(self.candidate(torch.cat([near, road @ near], -1)))
        return self.out(h)[..., 0]


def batch(broken=False, n=16):
    start = 100 * torch.rand(n, 1)
    t = start + torch.arange(PAST + 1)
    speed = 60 + 12 * torch.sin(0.5 * t)[..., None] + 3 * torch.randn(n, PAST + 1, SENSORS)
    if broken:
        speed[:5, 8:, 4] = -9999.0  # the new month marks a silent sensor so; before it was left out
    return ((speed - 60) / 12)[:, :PAST], ((speed - 60) / 12)[:, PAST]


model = DCGRU()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = batch(broken=step >= 120 and step % 3 == 0)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (119, 120, 121, 199):
        print(step, loss.item(), x.abs().max().item(), model.out.weight.grad.norm().item(), flush=True)
handle.detach()
