"""Length of bike rides from the distance, the hour, the temperature and the time of the start, by SGD with momentum. FAULT from step 0: the time of the start goes in as seconds since 1970 (1.7e9), as the column of the table is,
where the others are standardised.
Without Rangewatch: loss 4.5e17 at step 0, inf at 1 and 2, NaN from 3 on.
Cause: data. Step: 0. Right: standardise the input / scale. Wrong: mask, GradScaler."""
EXPECT = {"cause": ["data"], "step": [-1, 4], "place": None, "rank": None,
          "right": "(?i)input|standardi|normali|scal|preproc|feature|data", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(107); torch.set_num_threads(1)


class Rides(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(4, 32)
        self.body = nn.Sequential(nn.Tanh(), nn.Linear(32, 32), nn.ReLU())
        self.out = nn.Linear(32, 1)
        self.skip = nn.Linear(4, 1, bias=False)

    def forward(self, x):
        return self.out(self.body(self.enter(x)))[:, 0] + self.skip(x)[:, 0]


def rides(n):
    distance, hour, warm = torch.randn(n), torch.rand(n) * 24, torch.randn(n)
    start = 1.7e9 + 86400 * torch.randint(0, 200, (n,)).float() + 3600 * hour
    y = distance + 0.3 * (distance * warm) + 0.5 * torch.sin(hour / 24 * 6.28)
    return torch.stack([distance, hour / 12 - 1, warm, start], 1), y


net = Rides()
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
for step in range(150):
    x, y = rides(64)
    loss = F.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step < 5:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
