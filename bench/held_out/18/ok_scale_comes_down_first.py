"""HEALTHY. A net predicts the next level of a river, float16 autocast, GradScaler with its first scale at 2**22: the first steps overflow and are skipped
until the scale fits; then the training goes well and the scale stays, but for a doubling each 100 steps and what follows of it.
Without Rangewatch: the scale falls from 2**22 to 16384 in the first eight steps, all skipped; loss 1.85 to 0.084 at the end with a scale of 65536."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1821); torch.set_num_threads(1)


class River(nn.Module):
    def __init__(self):
        super().__init__()
        self.rain = nn.Conv1d(2, 24, 6)
        self.basin = nn.Conv1d(24, 24, 6, stride=2)
        self.level = nn.Linear(24 * 7, 1)

    def forward(self, x):
        return self.level(F.gelu(self.basin(F.gelu(self.rain(x)))).flatten(1))[:, 0]


def days(n):
    rain = torch.relu(torch.randn(n, 24))
    snow = torch.relu(torch.randn(n, 24).cumsum(1) / 5)
    fade = torch.exp(-torch.arange(24.0) / 5).flip(0)
    return torch.stack((rain, snow), 1), (rain * fade).sum(1) * 0.5 + 0.1 * snow[:, -1] + 0.05 * torch.randn(n)


model = River()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=100)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(220):
    x, level = days(48)
    with torch.autocast("cpu", torch.float16):
        estimate = model(x)
    loss = F.mse_loss(estimate.float(), level)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step < 8 or step == 219:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
