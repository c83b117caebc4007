"""A net that tells four kinds of sea ice from radar patches. The rate goes down in a line to zero, over 80 steps, as in the trial run that the settings
were taken from; the training has 240. FAULT from step 80 on: the rate is 0, two thirds of the training do nothing.
Without Rangewatch: loss 1.38 to 1.06 at step 80, then 0.92 to 1.06 to the end, all weights at rest; with the line over 240 steps it is 0.22 at the end.
Cause: learning_rate. Step: 70 to 239. Right: learning rate / scheduler / zero / total steps. Wrong: GradScaler, mask, lower the learning rate."""
EXPECT = {"cause": ["learning_rate"], "step": [70, 239], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16", "[Ll]ower the learning rate"],
          "right": "learning rate|schedul|zero|lr|total"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1615); torch.set_num_threads(1)
texture = torch.randn(4, 1, 5, 5) / 3


def ice(n):
    kind = torch.randint(0, 4, (n,))
    noise = torch.randn(1, n, 16, 16)
    waves = F.conv2d(noise, texture[kind], groups=n).transpose(0, 1)
    return 0.4 * torch.randn(n, 1, 12, 12) + waves, kind


class Ice(nn.Module):
    def __init__(self):
        super().__init__()
        self.eye = nn.Sequential(nn.Conv2d(1, 16, 5), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())
        self.kind = nn.Linear(16, 4)

    def forward(self, x):
        return self.kind(self.eye(x).mean((2, 3)))


model = Ice()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 80))
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, kind = ice(48)
    loss = F.cross_entropy(model(x), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
