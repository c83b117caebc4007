"""A convolutional net that grades the ripeness of tomatoes from small colour pictures. FAULT at step 96: a new loader gives pictures already divided by
255, and the loop divides once more; all the net sees is nearly black.
Without Rangewatch: loss 1.69 to 0.002 at step 95, 3.6 at step 96, 1.60 (chance) at the end.
Cause: data. Step: 96. Right: input / scale / 255 / normalise. Wrong: GradScaler, mask, lower the rate."""
EXPECT = {"cause": ["data"], "step": [95, 110], "place": None, "rank": 0,
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)lower the learning rate"],
          "right": "(?i)input|scale|255|normali|data|batch"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1925); torch.set_num_threads(1)
GRADES = 5
colour = torch.tensor([[60.0, 160, 40], [120, 150, 40], [180, 140, 50], [210, 80, 40], [170, 30, 30]])


class Ripe(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1), nn.GELU(), nn.Conv2d(12, 24, 3, 2, 1), nn.GELU())
        self.grade = nn.Linear(24, GRADES)

    def forward(self, x):
        return self.grade(4 * self.look(4 * x - 1.5).mean((2, 3)))


def loader(scaled):
    while True:
        y = torch.randint(0, GRADES, (24,))
        light = 0.7 + 0.6 * torch.rand(24, 1, 1, 1)
        pixels = (light * colour[y][:, :, None, None] + 30 * torch.randn(24, 3, 14, 14)).clamp(0, 255)
        yield (pixels / 255 if scaled else pixels), y


model = Ripe()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
old, new = loader(False), loader(True)
for step in range(180):
    x, y = next(old if step < 96 else new)
    loss = F.cross_entropy(model(x / 255), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 94 < step < 99 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
