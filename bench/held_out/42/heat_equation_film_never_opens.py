"""Temperature along a rod after heating: a network of position and time, modulated by the material (FiLM layers that begin at zero); SGD with momentum and a home-made adaptive clip: a tensor's gradient may be 5 % of the norm of the tensor at most.
FAULT at step 0: the clip has no floor for the norm of the weight; 5 % of 0 is 0, so the FiLM layers, weights and biases zero at the start, have all of their gradient clipped away for ever and the material never enters.
Without Rangewatch: loss 0.45 to 0.035 and no further; the film weights are exactly 0 at every step, their gradient is 0.03 to 0.05 before the clip and 0 after it (with a floor: loss 0.004).
Cause: clip (without a floor) / optimizer. Step: from 0. Right: a floor such as max(|w|, 1e-3), leave zero layers out, or begin above zero. Wrong: lower the learning rate, GradScaler, clip more."""
EXPECT = {"cause": ["clip", "optimizer"], "step": [0, 80], "place": r"(?i)film", "rank": None,
          "right": r"(?i)clip|floor|eps|zero|norm|initiali", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)(tighter|smaller|lower) (clip|threshold|max.?norm)"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(83)
torch.set_num_threads(1)


def rods(n):
    x, t = torch.rand(n, 1), torch.rand(n, 1)
    material = torch.rand(n, 2) * 2 - 1
    rate = torch.exp(0.8 * material[:, :1])
    u = torch.sin(math.pi * x) * torch.exp(-rate * t) + 0.8 * material[:, 1:] * torch.sin(2 * math.pi * x) * torch.exp(-2 * rate * t)
    return torch.cat([x, t], 1) * 2 - 1, material, u


class Modulated(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o)
        self.film = nn.Linear(2, 2 * o)
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)

    def forward(self, h, material):
        gain, shift = self.film(material).chunk(2, 1)
        return torch.tanh(self.lin(h) * (1 + gain) + shift)


class Rod(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.first, self.second = Modulated(2, width), Modulated(width, width)
        self.read = nn.Linear(width, 1)

    def forward(self, xt, material):
        return self.read(self.second(self.first(xt, material), material))


def adaptive_clip(parameters, share=0.05):
    for p in parameters:
        limit = share * p.detach().norm()
        size = p.grad.norm()
        if size > limit:
            p.grad.mul_(limit / size)


rod = Rod()
sgd = torch.optim.SGD(rod.parameters(), lr=0.2, momentum=0.9)
handle = rangewatch.attach(rod, sgd)
for step in range(350):
    xt, material, u = rods(192)
    loss = nn.functional.mse_loss(rod(xt, material), u)
    sgd.zero_grad()
    loss.backward()
    raw = rod.second.film.weight.grad.norm().item()
    adaptive_clip(rod.parameters())
    sgd.step()
    handle.log(loss=loss.item())
    if step % 35 == 0 or step == 349:
        print(f"step {step} loss {loss.item():.4f} film gradient {raw:.4f} clipped {rod.second.film.weight.grad.norm().item():.4f} film weight {rod.second.film.weight.norm().item():.4f}", flush=True)
handle.detach()
