"""Surrogate of a bending beam: deflection at 10 points from load, stiffness and span; bottleneck MLP with float16 autocast on the CPU, GradScaler, SGD with momentum.
FAULT at step 0: every parameter has a hook that divides its gradient by scaler.get_scale() ("so that the norms I print are true"), and scaler.step() divides once more: the optimizer sees 1/1024 of the gradient.
Without Rangewatch: loss 5 to 10 from first to last; the gradient norm in the optimizer's hands is 0.003.
Cause: loss_scale (taken out twice) / backward_arithmetic (hook makes the gradient too small). Step: from 0. Right: take the hook away, use scaler.unscale_ once. Wrong: lower the learning rate, attention mask, clip."""
EXPECT = {"cause": ["loss_scale", "backward_arithmetic"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)scal|hook|twice|gradients?.*(small|tiny|vanish)|update", "wrong": [r"(?i)lower the learning rate", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1999); torch.set_num_threads(1)
POINTS = torch.linspace(0.05, 0.95, 10)


def beams(n):
    load, stiff, span = 0.5 + torch.rand(n, 1), 0.5 + torch.rand(n, 1), 0.7 + 0.6 * torch.rand(n, 1)
    at = 0.2 + 0.6 * torch.rand(n, 1)
    shape = torch.sin(3.1416 * POINTS) * torch.exp(-2 * (POINTS - at) ** 2)
    y = 3 * load * span ** 3 / stiff * shape
    x = torch.cat([load - 1, stiff - 1, span - 1, at - 0.5], 1) * 3.4
    return x, y


class Beam(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(4, 96)
        self.neck = nn.Linear(96, 24)
        self.again = nn.Linear(24, 96)
        self.deflection = nn.Linear(96, 10)

    def forward(self, x):
        h = torch.tanh(self.wide(x))
        h = torch.tanh(self.neck(h))
        return self.deflection(torch.tanh(self.again(h)))


model = Beam()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10_000)
for p in model.parameters():
    p.register_hook(lambda g: g / scaler.get_scale())
handle = rangewatch.attach(model, optimizer)
for step in range(250):
    x, y = beams(64)
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    loss = nn.functional.mse_loss(out.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    handle.log(loss=loss.item())
    if step % 25 == 0 or step == 249:
        g = torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()
        print(f"step {step} loss {loss.item():.4f} gradient in the optimizer {g:.2e}", flush=True)
handle.detach()
