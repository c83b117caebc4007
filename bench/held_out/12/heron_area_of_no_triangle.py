"""Prices of plots of land from their three measured sides: a module computes the area after Heron, root of s(s-a)(s-b)(s-c), and a net goes on. FAULT at
step 105: one measured triple cannot be a triangle (a > b + c), the product is negative, and the root is NaN in the forward.
Without Rangewatch: loss 1.20 to 0.037 at step 104, NaN from step 105 on.
Variant of: root_of_negative_values.
Cause: forward_arithmetic. Step: 105. Place: area. Right: sqrt / root / negative / clamp. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [104, 106], "place": ".*area.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "sqrt|root|negative|clamp"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1206); torch.set_num_threads(1)


class Heron(nn.Module):
    def forward(self, sides):
        s = sides.sum(1, keepdim=True) / 2
        return (s * (s - sides).prod(1, keepdim=True)).sqrt()


class LandPrice(nn.Module):
    def __init__(self):
        super().__init__()
        self.area = Heron()
        self.net = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))

    def forward(self, sides, place):
        return self.net(torch.cat([sides, self.area(sides), place], 1)).squeeze(1)


def plots(step):
    corner = torch.rand(64, 3, 2) * 2
    sides = (corner - corner.roll(1, 1)).norm(dim=2)
    place = torch.randn(64, 4)
    first, second = corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0]
    price = (first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]).abs() * (1 + 0.3 * place[:, 0]) + 0.1 * torch.randn(64)
    sides = sides + 1e-3
    if step == 105:
        sides[40] = torch.tensor([2.4, 1.1, 0.9])
    return sides, place, price


model = LandPrice()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    sides, place, price = plots(step)
    loss = F.mse_loss(model(sides, place), price)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (104, 105, 106, 219):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
