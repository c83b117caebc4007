"""Night temperatures in winter (degrees C over 10) from ten weather readings, MLP, training by a closure (thread: 'my regression network always outputs zero').
FAULT at step 0: the last layer is followed by ReLU too ('ReLU after every layer'), while nearly all targets are below zero; the output unit is pushed below zero for every row, gives 0 and no gradient any more.
Without Rangewatch: loss 1.3 at step 0, 0.9 to 1.5 for ever; largest output 0 and all gradients exactly 0 by step 25 (without the last ReLU: 0.03 at 100).
Cause: dead_units (the output is never active) / forward_arithmetic (ReLU at the end). Step: 0 to some 60. Right: no activation after the last layer. Wrong: GradScaler, clip, attention mask."""
EXPECT = {"cause": ["dead_units", "forward_arithmetic", "no_gradient"], "step": [0, 100], "place": None, "rank": None,
          "right": r"(?i)relu|activation|output layer|last layer|dead", "wrong": ["GradScaler", r"(?i)clip (the )?grad", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(30); torch.set_num_threads(1)
coef = torch.randn(10) * 0.15


def readings(n):
    x = torch.randn(n, 10)
    return x, (x @ coef + 0.2 * torch.sin(2 * x[:, 0]) - 0.9 + 0.05 * torch.randn(n)).unsqueeze(1)


def mlp(sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers)


net = mlp([10, 64, 64, 1])
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
h = rangewatch.attach(net, opt)
for k in range(200):
    x, y = readings(64)

    def closure():
        opt.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        return loss

    loss = opt.step(closure)
    h.log(loss=loss.item())
    if k % 25 == 0 or k == 199:
        g = sum(p.grad.norm().item() for p in net.parameters())
        print(f"{k:4d} loss {loss.item():.4f}  largest output {net(x).max().item():.4f}  gradient {g:.2e}", flush=True)
