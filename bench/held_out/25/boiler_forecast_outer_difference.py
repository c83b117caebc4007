"""An LSTM that foretells the temperature of a boiler, four microbatches of 16 a step. FAULT from the start: the forecast has the shape (16, 1), the target
(16,): their difference is a table of 16 by 16, each forecast against each target; the net learns the mean of the batch and nothing else.
Without Rangewatch: loss 0.85 to 0.098 at step 20, 0.06 to 0.10 from there; the true error is 0.076 at the end where the variance is 0.082. With the
shapes right it is 0.0021.
Cause: data or forward_arithmetic (shapes that are broadcast). Step: any. Right: shape / broadcast / squeeze. Wrong: GradScaler, attention mask, clip."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [0, 200], "place": None, "rank": 0,
          "right": "(?i)shape|broadcast|squeeze|column", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2510); torch.set_num_threads(1)


class Boiler(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(2, 56, batch_first=True)
        self.head = nn.Sequential(nn.Linear(56, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


def plant(n):
    fire = (torch.rand(n, 24) < 0.5).float()
    heat, course = torch.rand(n), []
    for k in range(24):
        course.append(heat)
        heat = 0.85 * heat + 0.3 * fire[:, k]
    return torch.stack((fire, torch.stack(course, 1)), 2), heat


net = Boiler()
optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    optimizer.zero_grad()
    total = 0.0
    for micro in range(4):
        x, y = plant(16)
        loss = ((net(x) - y) ** 2).mean() / 4
        loss.backward()
        total += loss.item()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        with torch.no_grad():
            x, y = plant(256)
            print(step, total, "true error", ((net(x)[:, 0] - y) ** 2).mean().item(), "variance", y.var().item(), flush=True)
    handle.log(loss=total)
handle.detach()
