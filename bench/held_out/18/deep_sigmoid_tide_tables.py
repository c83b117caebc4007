"""A net of twelve layers with sigmoids, each with a sound initialisation, predicts the tide from the moon, the sun and the wind. FAULT from the first step
on: the derivative of a sigmoid is at most 1/4, so that the gradient shrinks by about ten with each layer; the first layers don't learn, and the last one
learns no more than the mean.
Without Rangewatch: loss 0.66 to 0.70, the variance of the tide; the gradient of the first layer is 1e-8, that of the last but one 3e-2 to 0.3; with ReLU
the loss is 0.003 at the end.
Cause: no_gradient, weight, dead_units or backward_arithmetic (vanishing gradient). Step: from 0 on. Right: sigmoid / ReLU / vanish / residual / normalise
/ initialise. Wrong: GradScaler, mask, clip."""
EXPECT = {"cause": ["no_gradient", "weight", "dead_units", "backward_arithmetic", "forward_arithmetic"], "step": [0, 100], "place": None, "rank": 0,
          "least": "info", "wrong": ["GradScaler", "attention mask", "(?i)lower the learning rate"],
          "right": "(?i)sigmoid|relu|gelu|vanish|residual|skip connection|normali[sz]|initiali|satur"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1830); torch.set_num_threads(1)
LAYERS = 12

layers = []
for i in range(LAYERS):
    layers += [nn.Linear(6 if i == 0 else 32, 32), nn.Sigmoid()]
    nn.init.xavier_normal_(layers[-2].weight)
    nn.init.zeros_(layers[-2].bias)
model = nn.Sequential(*layers, nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(model, optimizer)


def hours(n):
    t = 700 * torch.rand(n)
    moon, sun = t * 6.2832 / 12.42, t * 6.2832 / 12.0
    wind = torch.randn(n, 2)
    x = torch.stack((moon.sin(), moon.cos(), sun.sin(), sun.cos()), 1)
    return torch.cat((x, wind), 1), moon.cos() + 0.46 * sun.cos() + 0.2 * wind[:, 0]


for step in range(200):
    x, tide = hours(64)
    loss = F.mse_loss(model(x)[:, 0], tide)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 199:
        norms = [model[2 * i].weight.grad.norm().item() for i in (0, 5, 11, 12)]
        print(step, loss.item(), "variance", tide.var().item(), "gradients", *(f"{x:.1e}" for x in norms), flush=True)
    handle.log(loss=loss.item())
handle.detach()
