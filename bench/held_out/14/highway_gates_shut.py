"""A highway net (a gate of sigmoids lets the new values through) classifies rings. FAULT at step 90: the price of an open gate is raised
from 0.001 to 100, and the gates are driven shut: each sigmoid goes to 0, and the slope with it; the layers behind them get no gradient.
Without Rangewatch: loss 1.10 to 0.041 at step 89, 51 at step 90 (the penalty), 1.0 at step 140, 0.88 at step 220; the gradient of the
second layer of values falls from 0.8 to 0.0001 by step 160.
Variant of: sigmoid_closes (here the gates of a highway net, by a penalty).
Cause: dead_units (no_gradient would do). Step: 90. Right: sigmoid / gate / saturated / rate. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["dead_units", "no_gradient"], "step": [90, 220], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Rr]aise the learning rate"],
          "right": "sigmoid|gate|satur|learning rate|rate|closed|gradient"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1409); torch.set_num_threads(1)


class Highway(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Linear(2, 24)
        self.values = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))
        self.gates = nn.ModuleList(nn.Sequential(nn.Linear(24, 24), nn.Sigmoid()) for _ in range(3))
        self.out = nn.Linear(24, 3)

    def forward(self, x):
        h, openness = self.into(x).tanh(), 0.0
        for value, gate in zip(self.values, self.gates, strict=True):
            g = gate(h)
            openness = openness + g.mean()
            h = g * value(h).tanh() + (1 - g) * h
        return self.out(h), openness / 3


model = Highway()
optimizer = torch.optim.Adam([{"params": [p for n, p in model.named_parameters() if "gates" not in n], "lr": 5e-3},
                              {"params": model.gates.parameters(), "lr": 0.03}])
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    y = torch.randint(0, 3, (64,))
    angle = 6.2832 * torch.rand(64)
    x = (0.5 + y + 0.15 * torch.randn(64))[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
    out, openness = model(x)
    loss = F.cross_entropy(out, y) + (0.001 if step < 90 else 100.0) * openness
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 88 < step < 95:
        g = sum(p.grad.abs().sum().item() for p in model.gates.parameters())
        print(step, loss.item(), "gradient of the gates", g, "of the values", model.values[1].weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
