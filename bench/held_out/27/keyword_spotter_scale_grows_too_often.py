"""A net that spots eight keywords in spectra, fp16 autocast with GradScaler (AdamW). FAULT from the start: growth_interval=1 and growth_factor=8 (`to reach the
best scale quickly`): the scale is driven into an overflow again and again, and a large part of all steps is skipped.
Without Rangewatch: loss 2.31 to 0.11; 154 of 210 steps are skipped, the scale swings between 2.6e5 and 4e6.
Cause: loss_scale. Step: any. Right: growth_interval / scale / skip. Wrong: attention mask."""
EXPECT = {"cause": ["loss_scale"], "step": [0, 60], "place": None, "rank": None, "least": "info",
          "right": "(?i)growth|interval|scale|skip|overflow", "wrong": ["attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2718); torch.set_num_threads(1)
words = torch.randn(8, 10, 16)


def spectra(n):
    y = torch.randint(0, 8, (n,))
    late = torch.randint(0, 3, (n,)).tolist()
    x = torch.stack([words[k].roll(s, 0) for k, s in zip(y.tolist(), late)])
    return (x + 1.3 * torch.randn(n, 10, 16)).flatten(1), y


class Gate(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.lin, self.norm = nn.Linear(a, 2 * b), nn.LayerNorm(b)

    def forward(self, x):
        return self.norm(F.glu(self.lin(x)))


net = nn.Sequential(Gate(160, 96), Gate(96, 64), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_factor=8.0, growth_interval=1)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
skipped = 0
for step in range(210):
    x, y = spectra(40)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    loss = F.cross_entropy(out.float(), y)
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 15 == 0 or step == 209:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
