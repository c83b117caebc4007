"""Flow matching over the tracks of storks. FAULT at step 120: one number of one track is NaN (the sender had no fix); the loss is NaN, and with it the
weights.
Without Rangewatch: loss 1.74 to 0.56 at step 119, NaN from step 120 on.
Cause: data. Step: 120. Right: NaN in the input / batch / sample. Wrong: GradScaler, mask, lower the learning rate, overflow."""
EXPECT = {"cause": ["data"], "step": [119, 121], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate", "overflow"],
          "right": "input|data|batch|NaN|sample"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1516); torch.set_num_threads(1)
hour = torch.arange(20) / 20


class Flow(nn.Module):
    """Flow matching over the tracks of storks: 20 positions of two coordinates."""
    def __init__(self, width=96):
        super().__init__()
        self.inp, self.time = nn.Linear(40, width), nn.Sequential(nn.Linear(8, width), nn.SiLU())
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(3))
        self.out = nn.Linear(width, 40)

    def forward(self, x, t):
        angle = 3.1416 * t[:, None] * torch.arange(1, 5)
        h = self.inp(x) + self.time(torch.cat((angle.sin(), angle.cos()), 1))
        for block in self.blocks:
            h = h + block(h)
        return self.out(h)


def tracks(n):
    heading, bend = 6.2832 * torch.rand(n, 1), torch.randn(n, 1)
    course = heading + bend * hour
    return torch.stack((course.cos().cumsum(1), course.sin().cumsum(1)), 2).flatten(1) / 10


model = Flow()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    track = tracks(64)
    if step == 120:
        track[31, 14] = float("nan")  # the sender of one bird had no fix at seven o'clock
    t, noise = torch.rand(64), torch.randn(64, 40)
    x = torch.lerp(noise, track, t[:, None])
    loss = F.mse_loss(model(x, t), track - noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (119, 121, 199):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
