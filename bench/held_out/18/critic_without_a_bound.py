"""The critic of a Wasserstein GAN for sea temperatures (the generator is a fixed simulator here), float16 autocast with a GradScaler. FAULT from the first
step on: neither weights nor gradients are bounded (no clipping, no gradient penalty), so that the distance is made larger by larger outputs alone; they
grow from the first step until they exceed 65504 in float16.
Without Rangewatch: the largest output is 0.13 at step 0, 5,800 at step 10, 32,000 at step 20, 64,832 at step 26, inf from step 27 on; the loss is -inf
from step 27 on and NaN by step 34, the scale falls from 256 to 5e-32.
Cause: forward_arithmetic (overflow), weight (growth), regularization, learning_rate or clip. Step: 0 to the overflow. Right: float16 / overflow / grow /
clip / penalty / spectral norm / learning rate. Wrong: attention mask, communication."""
EXPECT = {"cause": ["forward_arithmetic", "weight", "learning_rate", "regularization", "clip"], "step": [0, 60], "place": None, "rank": 0,
          "wrong": ["attention mask", "(?i)\\bnccl\\b"],
          "right": "(?i)float16|fp16|half|overflow|65504|grow|clip|penalt|spectral|learning rate|decay"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1811); torch.set_num_threads(1)
months = torch.arange(36) / 12 * 6.2832


def measured(n):
    return torch.sin(months + 0.3 * torch.randn(n, 1)) * (1 + 0.2 * torch.randn(n, 1)) + 0.2 * torch.randn(n, 36)


def simulated(n):
    return torch.sin(months + 0.9 * torch.randn(n, 1)) * 0.6 + 0.1 * torch.randn(n, 36)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.year = nn.Conv1d(1, 16, 12, stride=4)
        self.seasons = nn.Linear(16 * 7, 64)
        self.inner = nn.Linear(64, 64)
        self.value = nn.Linear(64, 1)

    def forward(self, x):
        h = torch.relu(self.year(x[:, None])).flatten(1)
        h = torch.relu(self.inner(torch.relu(self.seasons(h))))
        return self.value(h)[:, 0]


critic = Critic()
optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
handle = rangewatch.attach(critic, optimizer, scaler=scaler)
for step in range(240):
    x = torch.cat((measured(32), simulated(32)))
    with torch.autocast("cpu", torch.float16):
        value = critic(x)
    loss = value[32:].float().mean() - value[:32].float().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0 or step == 239:
        print(step, loss.item(), "largest value", value.abs().max().item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
