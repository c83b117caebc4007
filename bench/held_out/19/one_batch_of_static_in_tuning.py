"""A net that hears whether a bee hive is about to swarm, pretrained and now tuned to another hive. FAULT at step 128, for one batch: the radio link was
broken and the recorder wrote static at full range, 30 times as loud as any hive, with the labels of the minute before. The weights are thrown far off.
Without Rangewatch: loss 0.08 to 0.0001-0.002 at step 127, 20 at step 128, 4.9 at step 130, 0.14 at the end.
Cause: data. Step: 128. Right: batch / input / data / clip. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [127, 129], "place": None, "rank": 0,
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)bfloat16"],
          "right": "(?i)batch|input|data|sample|clip"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1922); torch.set_num_threads(1)


class Hive(nn.Module):
    def __init__(self):
        super().__init__()
        self.ear = nn.Sequential(nn.Conv1d(1, 16, 9, 4, 4), nn.ReLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.ReLU())
        self.swarm = nn.Sequential(nn.Linear(24 * 12, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, x):
        return self.swarm(self.ear(x[:, None]).flatten(1))


def minutes(n, hum):
    y = torch.randint(0, 2, (n,))
    t = torch.arange(96) / 96
    pitch = hum + 5 * y[:, None] + torch.rand(n, 1)
    return torch.sin(6.2832 * (pitch * t + torch.rand(n, 1))) + 0.7 * torch.randn(n, 96), y


model = Hive()
first = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(150):  # the pretraining, not watched
    x, y = minutes(32, 10.0)
    first.zero_grad()
    F.cross_entropy(model(x), y).backward()
    first.step()

optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = minutes(32, 12.0)
    if step == 128:
        x = 30 * torch.randn_like(x).sign()
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 126 < step < 132 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
