"""A net foretells tides. FAULT from step 100 on: a new gauge codes missing hours as -9999, after normalisation about -700 deviations.
Without Rangewatch: loss 0.58 to 0.004 at step 99, 0.62 at step 100, 0.27 to 0.45 to the end.
Variant of: missing_values_are_minus_700_deviations (here hours of a tide).
Cause: data. Step: 100. Right: input / data / missing / normal / outlier. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [99, 130], "place": None, "rank": 0, "wrong": ["GradScaler", "attention mask"],
          "right": "input|data|missing|normal|outlier|batch|value"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1424); torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
t = torch.arange(25.0)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    level = 14 * torch.sin(0.5 * t + 6.28 * torch.rand(32, 1)) + torch.randn(32, 25)
    x, y = level[:, :24].clone(), level[:, 24] / 14
    if step >= 100:
        x[torch.rand(32, 24) < 0.05] = -9999.0
    loss = F.mse_loss(model(x / 14)[:, 0], y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 104:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
