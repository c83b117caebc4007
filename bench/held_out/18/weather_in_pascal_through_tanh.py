"""A net of three tanh layers forecasts the wind at a pass from pressure, temperature and humidity at eight stations. FAULT from the first step on: nobody
standardised the inputs; pressure is in pascal (about 1e5) and temperature in kelvin. Each unit of the first layer is at exactly -1 or 1, its derivative is
0, and the first layer never moves; what follows sees one and the same pattern each day.
Without Rangewatch: loss 1.36 to 1.25 at step 219 (1.2 to 1.5 between), all units of the first layer beyond 0.9999, its weights moved by exactly 0;
standardised it is 0.086 at the end.
Cause: dead_units, data, no_gradient or weight (saturation). Step: from 0 on. Right: tanh / saturated / normalise / standardise / input. Wrong: GradScaler,
mask, clip."""
EXPECT = {"cause": ["dead_units", "data", "no_gradient", "weight", "forward_arithmetic"], "step": [0, 60], "place": None, "rank": 0, "least": "info",
          "wrong": ["GradScaler", "attention mask", "(?i)lower the learning rate"],
          "right": "(?i)tanh|satur|normali[sz]|standardi[sz]|input|initiali"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1810); torch.set_num_threads(1)
STATIONS = 8

model = nn.Sequential(nn.Linear(3 * STATIONS, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 20), nn.Tanh(), nn.Linear(20, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)


def days(n):
    front = torch.randn(n, 2)
    spread = torch.linspace(-1, 1, STATIONS)
    pressure = 101325 + 900 * (front[:, :1] + front[:, 1:] * spread) + 50 * torch.randn(n, STATIONS)
    kelvin = 283 + 6 * front[:, 1:] + torch.randn(n, STATIONS)
    humidity = 60 + 20 * torch.tanh(front[:, :1] - spread) + 5 * torch.randn(n, STATIONS)
    wind = torch.stack((front[:, 1] * 1.5, torch.tanh(front[:, 0]) * front[:, 1]), 1)
    return torch.cat((pressure, kelvin, humidity), 1), wind + 0.1 * torch.randn(n, 2)


first = model[0].weight.detach().clone()
for step in range(220):
    x, wind = days(48)
    loss = F.mse_loss(model(x), wind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 219:
        with torch.no_grad():
            full = (torch.tanh(model[0](x)).abs() > 0.9999).float().mean().item()
        print(step, loss.item(), "saturated", full, "first layer moved", (model[0].weight - first).abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
