"""A small diffusion model learns pendulum swings (24 samples each) by guessing the noise, Adam. FAULT from step 0: `ExponentialLR(gamma=0.9)`, meant for epochs of 40 batches, is stepped after every batch: the rate has fallen by a factor of ten after 22 steps and
there is none left after 100.
Without Rangewatch: loss 1.25 to 0.95 at step 40, 0.93 at the end, rate 5e-5 at 40, 1e-7 at 100 (decayed by epochs and a slower optimizer: 0.51).
Cause: learning_rate / optimizer (scheduler's place). Step: from 0, shows slowly. Right: scheduler / rate decays. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [10, 200], "place": None, "rank": None,
          "right": "(?i)schedul|learning rate|decay|epoch", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(414); torch.set_num_threads(1)
L, STEPS = 24, 50
bar = torch.cumprod(1 - torch.linspace(1e-3, 0.12, STEPS), 0)


def swings(n):
    phase, amp = 6.28 * torch.rand(n, 1), 0.7 + 0.6 * torch.rand(n, 1)
    return amp * torch.sin(phase + torch.arange(L) * 0.5)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(STEPS, 64)
        self.inp, self.mid, self.out = nn.Linear(L, 64), nn.Linear(64, 64), nn.Linear(64, L)
        self.norm = nn.LayerNorm(64)

    def forward(self, x, t):
        h = F.mish(self.inp(x) + self.time(t))
        h = h + F.mish(self.mid(self.norm(h)))
        return self.out(h)


model = Denoiser()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(280):
    x, t = swings(64), torch.randint(0, STEPS, (64,))
    noise = torch.randn_like(x)
    a = bar[t][:, None]
    loss = F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 20 == 0 or step == 279:
        print(step, loss.item(), "rate", scheduler.get_last_lr()[0], flush=True)
    handle.log(loss=loss.item())
handle.detach()
