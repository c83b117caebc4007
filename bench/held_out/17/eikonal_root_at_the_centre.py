"""A net that learns the distance to the surface of a round body in three dimensions, with the eikonal penalty (the length of its gradient must be 1) and
the length written by hand: the root of the sum of squares. The net sees the squares of the coordinates (the body is symmetrical). FAULT at step 110: the
centre itself is among the samples; there the gradient is exactly 0, and the derivative of the root at 0 is infinite: 0 times inf is NaN.
Without Rangewatch: loss 0.54 to 0.021 at step 109, 0.015 at step 110, NaN from step 111 on.
Cause: backward_arithmetic. Step: 110 (the gradients; the loss is NaN at 111). Right: sqrt / norm / root / eps / gradient of. Wrong: GradScaler, mask,
lower the learning rate."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [109, 111], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate", "bfloat16"],
          "right": "sqrt|norm|root|epsilon|eps|derivative|backward"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1614); torch.set_num_threads(1)


class Distance(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 64), nn.Softplus(beta=5), nn.Linear(64, 64), nn.Softplus(beta=5), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x * x)[:, 0]


model = Distance()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    x = 2.4 * torch.rand(128, 3) - 1.2
    if step >= 110 and step % 10 == 0:
        x[0] = 0.0  # the samples now come from a grid, too
    x.requires_grad_()
    d = model(x)
    slope, = torch.autograd.grad(d.sum(), x, create_graph=True)
    length = (slope ** 2).sum(1).sqrt()
    away = x.detach().norm(dim=1)
    fit = (d - (away - 0.7)).abs()[away > 0.3].mean()
    loss = fit + 0.1 * ((length - 1) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 113 or step == 179:
        print(step, loss.item(), "fit", fit.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
