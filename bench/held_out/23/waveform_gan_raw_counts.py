"""A GAN of heart sounds with one-dimensional convolutions, the losses of least squares (LSGAN). FAULT from step 120 on: the real sounds come from another
archive as raw counts of a 32-bit converter, about 1e8 instead of 1.
Without Rangewatch: loss of the judge 0.94 to 0.43 at step 119, 3e13 at step 120, 5e10 at the end.
Causes: data (the scale of the real sounds). Right: input / data / scale / normalise. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [119, 121], "place": None, "rank": 0,
          "right": "(?i)input|data|batch|scal|normali", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2320); torch.set_num_threads(1)
time = torch.arange(64) / 64


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(12, 32 * 8), nn.Unflatten(1, (32, 8)), nn.ConvTranspose1d(32, 24, 8, 4, 2), nn.ReLU(), nn.ConvTranspose1d(24, 1, 4, 2, 1))
        self.judge = nn.Sequential(nn.Conv1d(1, 24, 8, 4, 2), nn.LeakyReLU(0.2), nn.Conv1d(24, 32, 8, 4, 2), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(128, 1))

    def forward(self, sound):
        return self.judge(sound)[:, 0]


def sounds(n):
    beat, gap = 0.1 + 0.1 * torch.rand(n, 1), 0.35 + 0.1 * torch.rand(n, 1)
    wave = sum(torch.exp(-((time - at) / 0.05) ** 2) * torch.sin(60 * (time - at)) for at in (beat, beat + gap))
    return wave[:, None]


model = Pair()
optimizer = torch.optim.Adam(model.judge.parameters(), lr=5e-4, betas=(0.5, 0.99))
optimizer_m = torch.optim.Adam(model.maker.parameters(), lr=1e-3, betas=(0.5, 0.99))
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    real = sounds(32) * (1e8 if step >= 120 else 1.0)
    fake = model.maker(torch.randn(32, 12))
    loss_m = (model(fake) - 1).square().mean()
    optimizer_m.zero_grad()
    loss_m.backward()
    optimizer_m.step()
    loss = (model(real) - 1).square().mean() + model(fake.detach()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 118 < step < 124 or step == 199:
        print(step, loss.item(), "maker", loss_m.item(), flush=True)
    handle.log(loss=loss.item(), loss_maker=loss_m.item())
handle.detach()
