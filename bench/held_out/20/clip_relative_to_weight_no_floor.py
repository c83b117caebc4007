"""A residual net for the taste of cheese; each branch begins with a gain of 0. FAULT from the start: each gradient is clipped to 2% of the size of its own
weight, element by element, with no floor beneath; 2% of 0 is 0, and the gains (and with them the branches) stand at 0 for ever.
Without Rangewatch: the largest gain is 0.0 at each step; loss 2.1 to 1.2; with a floor of 0.05 the gains reach 0.65 and the loss 0.52.
Cause: clip (holds what is zero at zero), or no_gradient, optimizer. Step: 0. Place: gains. Right: clip / floor / eps. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["clip", "no_gradient", "optimizer", "backward_arithmetic"], "step": [0, 160], "place": r".*(gain|branch|layer|up|down).*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "(?i)clip|floor|clamp|eps|zero"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2018); torch.set_num_threads(1)


class Branch(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gain = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x + self.gain * self.down(F.gelu(self.up(x)))


class Cheese(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.enter = nn.Linear(14, width)
        self.layers = nn.Sequential(*(Branch(width) for _ in range(4)))
        self.leave = nn.Linear(width, 1)

    def forward(self, x):
        return self.leave(self.layers(self.enter(x)))[:, 0]


@torch.no_grad()
def clip_to_weights(parameters, factor=0.02):
    for p in parameters:
        bound = factor * p.abs()
        p.grad.copy_(p.grad.clamp(-bound, bound))


model = Cheese()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x = torch.randn(64, 14)
    y = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]) + 0.5 * x[:, 3]
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    clip_to_weights(model.parameters())
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "largest gain", max(b.gain.abs().max().item() for b in model.layers), flush=True)
    handle.log(loss=loss.item())
handle.detach()
