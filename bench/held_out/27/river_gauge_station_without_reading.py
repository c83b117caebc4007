"""A dilated conv net that foretells the level of a river from six gauges (AdamW, smooth L1). FAULT from step 110: the archive of the later years writes 999999
where a gauge gave no reading (one value in two hundred), and nobody takes them out before the net.
Without Rangewatch: loss 0.75 to 0.16 at step 109, 7162 at step 110, 120 to 1500 from there to the end.
Cause: data. Step: 110 on. Right: input / missing / outlier. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [109, 118], "place": None, "rank": None,
          "right": "(?i)data|input|missing|sentinel|outlier|batch|sample|range|normali[sz]", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2702); torch.set_num_threads(1)
NO_READING = 999999.0


def archive(n, hours, gaps):
    rain = (torch.rand(n, 6, hours + 8) < 0.1).float() * torch.rand(n, 6, hours + 8) * 2
    level = torch.zeros(n, 6)
    series = []
    for t in range(hours + 8):
        upstream = torch.cat((torch.zeros(n, 1), level[:, :-1]), 1)
        level = 0.8 * level + 0.15 * upstream + rain[:, :, t]
        series.append(level)
    series = torch.stack(series, 2)
    target = series[:, 5, hours + 3]
    seen = series[:, :, :hours].clone()
    seen[torch.rand_like(seen) < gaps] = NO_READING
    return seen, target


class Gauges(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv1d(6, 32, 3, padding=1)
        self.c2 = nn.Conv1d(32, 32, 3, padding=2, dilation=2)
        self.c3 = nn.Conv1d(32, 32, 3, padding=4, dilation=4)
        self.read = nn.Linear(32, 1)

    def forward(self, x):
        x = F.silu(self.c1(x))
        x = x + F.silu(self.c2(x))
        x = x + F.silu(self.c3(x))
        return self.read(x[:, :, -1])[:, 0]


net = Gauges()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    year = 1990 + step // 10
    x, y = archive(64, 24, gaps=0.005 if year >= 2001 else 0.0)
    loss = F.smooth_l1_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (109, 110, 111, 219):
        print(step, loss.item(), "largest input", x.max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
