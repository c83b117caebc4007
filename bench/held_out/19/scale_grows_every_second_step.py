"""A net that draws borders of cells in microscope pictures (a small U-net), float16 autocast with a GradScaler. FAULT at step 0: growth_interval is 2 (2000
was meant), so the scale doubles every two good steps until the gradient overflows, again and again: about a third of all steps is skipped.
Without Rangewatch: loss 0.66 to 0.065, 52 of 180 steps skipped, 5 of the first 20; the scale swings between 2 ** 18 and 2 ** 20.
Cause: loss_scale. Step: any from the first overflow on. Right: growth_interval / scaler / scale. Wrong: mask, lower the learning rate."""
EXPECT = {"cause": ["loss_scale"], "step": [0, 179], "place": None, "rank": 0, "least": "info",
          "wrong": ["(?i)attention mask", "(?i)lower the learning rate"],
          "right": "(?i)growth|interval|scaler|loss scale|overflow|skip"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1910); torch.set_num_threads(1)


class Borders(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, c, 3, padding=1), nn.Conv2d(c, 2 * c, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(2 * c, 2 * c, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(2 * c, c, 2, stride=2), nn.Conv2d(2 * c, 1, 3, padding=1)

    def forward(self, x):
        first = F.relu(self.down1(x))
        deep = F.relu(self.deep(F.relu(self.down2(first))))
        return self.out(torch.cat((first, F.relu(self.up(deep))), 1))


grid = torch.stack(torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij"))


def cells(n):
    centre, radius = 5 + 10 * torch.rand(n, 2, 1, 1), 3 + 4 * torch.rand(n, 1, 1)
    distance = (grid - centre).norm(dim=1) - radius
    border = (distance.abs() < 1).float()
    return (0.7 * (distance < 0) + 0.3 * border + 0.15 * torch.randn(n, 20, 20))[:, None], border[:, None]


model = Borders()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
scaler = torch.amp.GradScaler("cpu", growth_interval=2)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
skipped = 0
for step in range(180):
    x, y = cells(8)
    with torch.autocast("cpu", torch.float16):
        logits = model(x)
    loss = F.binary_cross_entropy_with_logits(logits.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), "scale", before, "steps skipped", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
