"""A compiled net that hears sirens in decibel spectra. FAULT at step 88: one clip has a dropped frame of exact zeros, log10 of 0 is -Inf: the input is -Inf, the loss NaN, and so is every weight
after the step.
Without Rangewatch: loss 1.10 to 0.00004 at step 87, NaN from 88.
Cause: data. Step: 88. Right: input / data / Inf / batch. Wrong: GradScaler, lower the learning rate, attention mask."""
EXPECT = {"cause": ["data", "forward_arithmetic", "eps"], "step": [87, 90], "place": None, "rank": None,
          "right": "(?i)input|data|batch|log|inf", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6130); torch.set_num_threads(1)
bins = torch.arange(24.0)[:, None]
frames = torch.arange(16.0)


class Siren(nn.Module):
    def __init__(self):
        super().__init__()
        self.hear = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 32))
        self.order = nn.Sequential(nn.Flatten(), nn.Linear(32 * 16, 48), nn.GELU())
        self.verdict = nn.Linear(48, 3)

    def forward(self, db):
        return self.verdict(self.order(self.hear(db.transpose(1, 2))))


def spectra(n, step):
    kind, speed, start = torch.randint(0, 3, (n,)), 0.5 + torch.rand(n, 1, 1), 6.28 * torch.rand(n, 1, 1)
    wail = 12 + 7 * torch.sin(speed * frames + start)
    yelp = 12 + 7 * torch.sign(torch.sin(speed * frames + start))
    line = torch.where((kind == 0)[:, None, None], wail, torch.where((kind == 1)[:, None, None], yelp, 12.0 + 0 * wail))
    power = torch.exp(-(bins - line) ** 2 / 4) + 0.1 * torch.rand(n, 24, 16) + 1e-3
    if step == 88:
        power[20, :, 5] = 0
    return 10 * power.log10() / 20, kind


net = Siren()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
model = torch.compile(net, backend="aot_eager")
for step in range(150):
    db, kind = spectra(48, step)
    loss = F.cross_entropy(model(db), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (87, 88, 89, 149):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
