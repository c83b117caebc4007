"""A strided convnet takes the noise out of pictures of galaxies under float16 autocast; the squared error is summed over all pixels (RMSprop with momentum). FAULT at step 0: `GradScaler` is constructed in the loop, anew in each step: each time it begins at 65536,
finds inf in the gradients, skips the step and would halve its scale, but is thrown away.
Without Rangewatch: summed error 1846 at step 0, 1781 at step 149, only the batches differ; 150 of 150 steps skipped (with one scaler before the loop: 13 skipped and an error of 24 at the end).
Cause: loss_scale. Step: from 0. Right: every step is skipped, keep one GradScaler outside of the loop, lower init_scale. Wrong: lower the learning rate, attention mask, checkpoint."""
EXPECT = {"cause": ["loss_scale"], "step": [0, 100], "place": None, "rank": None,
          "right": "(?i)scale", "wrong": ["[Ll]ower the learning rate", "attention mask", "checkpoint"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(5114)
torch.set_num_threads(1)
axis = torch.linspace(-1, 1, 16)
YY, XX = torch.meshgrid(axis, axis, indexing="ij")


def galaxies(n):
    turn, long = 3.14 * torch.rand(n, 1, 1), 0.35 + 0.4 * torch.rand(n, 1, 1)
    u, v = XX * turn.cos() + YY * turn.sin(), YY * turn.cos() - XX * turn.sin()
    clean = torch.exp(-(u / long) ** 2 - (v / 0.25) ** 2)
    return (clean + 0.1 * torch.randn(n, 16, 16))[:, None], clean[:, None]


class Galaxy(nn.Module):
    def __init__(self):
        super().__init__()
        self.shrink = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.CELU(), nn.Conv2d(8, 16, 3, 2, 1), nn.CELU())
        self.grow = nn.Sequential(nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.CELU(), nn.ConvTranspose2d(8, 1, 4, 2, 1))

    def forward(self, x):
        return self.grow(self.shrink(x))


galaxy = Galaxy()
opt = torch.optim.RMSprop(galaxy.parameters(), lr=5e-4, momentum=0.5)
handle = rangewatch.attach(galaxy, opt)
skipped = 0
for step in range(150):
    scaler = torch.amp.GradScaler("cpu")
    noisy, clean = galaxies(48)
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        picture = galaxy(noisy)
    loss = (picture.float() - clean).square().sum()
    scaler.scale(loss).backward()
    scaler.step(opt)
    before = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < before
    handle.log(loss=loss.item())
    if step % 15 == 0 or step == 149:
        print(step, "summed error", round(loss.item(), 2), "steps skipped", skipped, "of", step + 1, flush=True)
handle.detach()
