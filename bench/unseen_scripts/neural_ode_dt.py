"""Neural ODE, RK4 by hand, backprop through the solver. FAULT from step 140: the horizon changes from 1 to 60 seconds with equally many
steps (dt too large): the linear part is stiff, values explode in the forward to Inf/NaN. Cause: forward_arithmetic (a forward that
explodes), step 140, place func.* or whole. Right: look at the forward/growth. Wrong: mask, reload weights, GradScaler; lr not first."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [140, 140], "place": r"(func.*|)", "rank": 0,
          "wrong": ["[Mm]ask", "leave out samples", "tensors of the checkpoint", "GradScaler", "learning rate"], "right": "float|range|forward|values|clip|normalis"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Func(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2, bias=False)
        self.a, self.b = nn.Linear(2, 32), nn.Linear(32, 2)
        with torch.no_grad():
            self.lin.weight.copy_(torch.tensor([[-1.0, 2.0], [-2.0, -1.0]]))
    def forward(self, y):
        return self.lin(y) + self.b(torch.tanh(self.a(y)))

class ODE(nn.Module):
    def __init__(self):
        super().__init__()
        self.func = Func()
    def forward(self, y, t1, n=12):
        h, path = t1 / n, []
        for _ in range(n):
            k1 = self.func(y)
            k2 = self.func(y + h / 2 * k1)
            k3 = self.func(y + h / 2 * k2)
            k4 = self.func(y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            path.append(y)
        return torch.stack(path, 1)

ode = ODE()
opt = torch.optim.Adamax(ode.parameters(), 2e-3)
rangewatch.attach(ode, opt)
A = torch.tensor([[-0.5, 3.0], [-3.0, -0.5]])
for it in range(180):
    t1 = 1.0 if it < 140 else 60.0
    y0 = torch.randn(32, 2)
    times = torch.linspace(t1 / 12, t1, 12)
    truth = torch.einsum("tij,bj->bti", torch.matrix_exp(A * times[:, None, None]), y0)
    loss = (ode(y0, t1) - truth).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
