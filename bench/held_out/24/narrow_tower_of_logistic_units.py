"""A column of eighteen 1x1-convolved logistic layers (as in the books of 1990) over small colour tiles, six kinds. FAULT from step 0 on: each logistic layer multiplies
the gradient by a quarter or less; the first layers get a gradient ten orders below the last and do not learn.
Without Rangewatch: loss 1.86 to 1.81 (chance is 1.79); gradient norm 3e-16 in the first layer, 0.05 in the last.
Cause: no_gradient or dead_units (vanishing gradients of saturating units); weight (initialisation) is fair. Step: from 0 on, a state. Right: vanish / sigmoid / ReLU / norm / residual / gradient.
Wrong: GradScaler, attention mask, lower the rate."""
EXPECT = {"cause": ["no_gradient", "dead_units", "backward_arithmetic", "weight"], "step": [0, 179], "place": None, "rank": 0,
          "right": "(?i)vanish|sigmoid|relu|norm|residual|gradient|initiali", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2424); torch.set_num_threads(1)


class Logistic(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 1)

    def forward(self, x):
        return torch.sigmoid(self.conv(x))


column = nn.Sequential(*[Logistic(3 if i == 0 else 24, 24) for i in range(18)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 6))
optimizer = torch.optim.Adam(column.parameters(), lr=1e-3)
handle = rangewatch.attach(column, optimizer)
colour = torch.randn(6, 3, 1, 1)
for step in range(180):
    k = torch.randint(0, 6, (32,))
    loss = F.cross_entropy(column(colour[k] + 0.3 * torch.randn(32, 3, 4, 4)), k)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), "gradient first", column[0].conv.weight.grad.norm().item(), "last", column[17].conv.weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
