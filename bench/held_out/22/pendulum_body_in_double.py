"""A net of sine layers (SIREN) learns the energy of a double pendulum. FAULT at step 0: after the optimizer was made, the body is converted to float64 for the sake
of the derivatives, with torch.__future__.set_overwrite_module_params_on_conversion(True): the conversion makes new parameters. The optimizer holds the old float32
ones, which are nobody's any more: the body gets gradients and stands still, only the head (converted in place before) learns.
Without Rangewatch: loss 1.81, and 1.1 to 1.4 in the last 60 steps; the body has moved by exactly 0 (optimizer made after the conversion: 0.02, body moved by 0.15).
Causes: optimizer (parameters it does not have). Right: convert first, then make the optimizer. Wrong: the rate, clip, GradScaler, mask."""
EXPECT = {"cause": ["optimizer"], "step": [0, 239], "place": "body.*", "rank": 0,
          "right": "(?i)optimizer|param_group", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2216); torch.set_num_threads(1)


class Sine(nn.Module):
    def __init__(self, i, o, pitch):
        super().__init__()
        self.linear, self.pitch = nn.Linear(i, o), pitch

    def forward(self, x):
        return torch.sin(self.pitch * self.linear(x))


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(Sine(4, 64, 1.5), Sine(64, 64, 2.0), Sine(64, 64, 2.0))
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        return self.head(self.body(x))[:, 0]


model = Energy()
model.head.double()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
torch.__future__.set_overwrite_module_params_on_conversion(True)
model.body.to(torch.float64)
start = model.body[1].linear.weight.detach().clone()
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    s = (2 * torch.rand(128, 4, dtype=torch.float64) - 1) * torch.tensor([3.1, 3.1, 2.0, 2.0], dtype=torch.float64)
    a, b, u, v = s.T
    energy = u ** 2 + 0.5 * v ** 2 + u * v * torch.cos(a - b) - 2 * torch.cos(a) - torch.cos(b)
    loss = nn.functional.smooth_l1_loss(model(s), energy)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or step == 239:
        print(step, loss.item(), "body moved", (model.body[1].linear.weight - start).abs().max().item(), flush=True)
handle.detach()
