"""A net with two branches sets the colour of an old film (from grey patch and place to the colour), float16 autocast. FAULT from the first step on: the
GradScaler was made with growth_interval=2 for a quick test and left so: the scale doubles after each two good steps until the gradients overflow; from
then on every third step or so is thrown away, to the end.
Without Rangewatch: 69 of 240 steps are skipped, evenly to the end; the scale goes from 65536 to between 5e5 and 8e6 and to and fro; loss 0.098 to 0.00076,
with an interval of 2000 no step is skipped and it is 0.00050.
Cause: loss_scale. Step: 0 to 100. Right: growth_interval / scale / skipped steps / GradScaler. Wrong: lower the learning rate, mask."""
EXPECT = {"cause": ["loss_scale"], "step": [0, 100], "place": None, "rank": 0, "least": "info",
          "wrong": ["attention mask", "(?i)lower the learning rate"],
          "right": "(?i)growth|interval|scale|skip"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1815); torch.set_num_threads(1)


class Colour(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Conv2d(12, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.where = nn.Sequential(nn.Linear(2, 16), nn.ReLU())
        self.colour = nn.Linear(80, 2)

    def forward(self, grey, where):
        return self.colour(torch.cat((self.patch(grey), self.where(where)), 1))


def frames(n):
    where, texture = torch.rand(n, 2), torch.randint(1, 5, (n, 1, 1))
    grey = torch.sin(torch.arange(10) * texture * 0.7 + torch.rand(n, 1, 1) * 6).expand(n, 10, 10) + 0.2 * torch.randn(n, 10, 10)
    colour = torch.stack((where[:, 1] - 0.5, 0.4 * (texture[:, 0, 0] > 2).float()), 1)
    return grey[:, None], where, colour


model = Colour()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", growth_interval=2)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
skipped = 0
for step in range(240):
    grey, where, colour = frames(32)
    with torch.autocast("cpu", torch.float16):
        loss = F.mse_loss(model(grey, where).float(), colour)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 24 == 0 or step == 239:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
