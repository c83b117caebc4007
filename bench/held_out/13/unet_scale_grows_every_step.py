"""A small U-Net removes rain from pictures in float16 autocast with a GradScaler. FAULT from step 0: growth_interval=1 was left from a test: the scale doubles
after each good step, so that it soon overflows the gradients, is halved, and doubles again: every other step is skipped.
Without Rangewatch: loss 0.107 to 0.012; skipped steps: 9 by step 20, 28 by 60, 107 by the end; the scale runs about 2^19 to 2^23.
Variant of: interval_of_growth_is_two_steps.
Cause: loss_scale. Step: from the first skipped steps on. Right: growth_interval / scale / GradScaler. Wrong: lower the learning rate, mask, data."""
EXPECT = {"cause": ["loss_scale"], "step": [0, 120], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask"],
          "right": "growth|interval|scale|GradScaler"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1309); torch.set_num_threads(1)


class RainNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.mid, self.up = nn.Conv2d(16, 16, 3, padding=1), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.down(x))
        b = F.relu(self.mid(F.relu(self.deep(a))))
        return x + self.out(torch.cat((a, F.relu(self.up(b))), 1))


def pictures(n):
    x, y = torch.meshgrid(torch.linspace(0, 1, 10), torch.linspace(0, 1, 10), indexing="ij")
    a, b, c = (torch.rand(n, 1, 1, 1) for _ in range(3))
    clean = torch.sin(6 * a * x + 3 * b) * torch.cos(6 * c * y)
    rain = (torch.rand(n, 1, 1, 10) < 0.2).float() * torch.rand(n, 1, 10, 10)
    return clean + rain, clean


model = RainNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", growth_interval=1)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
skipped = 0
for step in range(220):
    x, y = pictures(8)
    with torch.autocast("cpu", torch.float16):
        z = model(x)
    loss = F.mse_loss(z.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped so far", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
