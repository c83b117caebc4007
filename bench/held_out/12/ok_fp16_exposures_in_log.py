"""Counts of cells on ever longer exposures (a curriculum), float16 autocast with a GradScaler: the net's log rate and the log of the exposure are added, up to
14, and the Poisson loss is taken per unit of exposure in float32, so that exp never sees more than the net's own output. HEALTHY.
Without Rangewatch: loss 1.02 to about 0.86 (its floor); the log rate's error falls from 0.45 to 0.017, the largest log rate rises from 2.4 to 14.8."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1238); torch.set_num_threads(1)


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU())
        self.log_rate = nn.Linear(48, 1)

    def forward(self, x, log_exposure):
        return self.log_rate(self.net(x)).squeeze(1).float() + log_exposure


stain = torch.randn(6) / 3
model = Cells()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(240):
    x = torch.randn(64, 6)
    log_exposure = 2 + 0.05 * step + 0.1 * torch.randn(64)
    count = torch.poisson((torch.tanh(x @ stain) + log_exposure).double().exp()).float()
    with torch.autocast("cpu", dtype=torch.float16):
        log_rate = model(x, log_exposure)
    own = log_rate - log_exposure
    loss = (own.exp() - count / log_exposure.exp() * own).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 239:
        error = (own - torch.tanh(x @ stain)).abs().mean().item()
        print(step, loss.item(), "error of the log rate", error, "largest", log_rate.max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
