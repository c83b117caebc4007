"""An implicit picture: a net takes a coordinate and gives the brightness; its first activation is an own autograd function for sinc (Adam). Grids of 16 x 16, from step 130 on of 17 x 17.
FAULT: the backward of the own function is (cos(pi x) - sinc(x)) / x, 0 / 0 at x = 0; the forward is right there. A grid with an odd number of points has the origin, where the layer without a bias gives exactly 0.
Without Rangewatch: loss 0.155 to 0.0003 at step 130, NaN at step 131 (weights NaN behind step 130).
Cause: backward_arithmetic. Step: 130. Right: backward / zero / division / where / gradient. Wrong: lower the learning rate, mask, GradScaler."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [129, 134], "place": None, "rank": None,
          "right": "(?i)backward|zero|divi|where|gradient|eps", "wrong": ["[Ll]ower the learning rate", "attention mask", "GradScaler"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(118); torch.set_num_threads(1)


class Sinc(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.sinc(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * ((math.pi * x).cos() - y) / x


class Picture(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(2, 64, bias=False)
        self.body = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, xy):
        return self.body(Sinc.apply(3 * self.enter(xy)))[:, 0]


def grid(n):
    return torch.cartesian_prod(torch.linspace(-1, 1, n), torch.linspace(-1, 1, n))


net = Picture()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(170):
    xy = grid(16 if step < 130 else 17)
    light = torch.exp(-6 * xy.square().sum(1)) + 0.4 * torch.cos(3 * xy[:, 0] + 2 * xy[:, 1])
    loss = (net(xy) - light).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 133:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
