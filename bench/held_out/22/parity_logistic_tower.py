"""A tower of fifteen layers with logistic sigmoids (as in the nineties) separates two rings of points. FAULT at step 0: each sigmoid cuts the
gradient to a quarter at best; the first layers get next to nothing and the loss stays at ln 2.
Without Rangewatch: loss 0.676 to 0.704 throughout (ln 2 is 0.693); the gradient of the first floor is 1e-14, that of the top 0.02 to 0.2.
Causes: no_gradient (vanishing), dead_units. Right: other activation (ReLU, GELU) / residual / normalisation / initialisation. Wrong: clip lower, GradScaler, attention mask."""
EXPECT = {"cause": ["no_gradient", "dead_units"], "step": [0, 199], "place": None, "rank": 0,
          "right": "(?i)sigmoid|activation|residual|norm|initiali|ReLU|vanish", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
from collections import OrderedDict
import torch
from torch import nn
import rangewatch

torch.manual_seed(2214); torch.set_num_threads(1)
parts, wide = OrderedDict(), 2
for floor in range(15):
    parts[f"floor{floor}"], parts[f"bend{floor}"] = nn.Linear(wide, 32), nn.Sigmoid()
    wide = 32
tower = nn.Sequential(parts)
tower.add_module("top", nn.Linear(32, 1))
optimizer = torch.optim.SGD(tower.parameters(), lr=0.1, momentum=0.9, nesterov=True)
handle = rangewatch.attach(tower, optimizer)
for step in range(200):
    y = (torch.rand(128, 1) < 0.5).float()
    radius, angle = 1.0 + y + 0.15 * torch.randn(128, 1), 6.2832 * torch.rand(128, 1)
    loss = nn.functional.binary_cross_entropy_with_logits(tower(radius * torch.cat((angle.cos(), angle.sin()), 1)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or step == 199:
        print(step, loss.item(), "gradient of the first floor", tower.floor0.weight.grad.norm().item(), "of the top", tower.top.weight.grad.norm().item(), flush=True)
handle.detach()
