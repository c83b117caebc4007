"""A net that finds which of six faults a solar panel has (several at once), from its current curve. FAULT at step 0: the net ends in nn.Sigmoid, and the
loss is BCEWithLogitsLoss, which takes the sigmoid again: what it sees as logits lies in 0 to 1, so that no probability is below 0.5.
Without Rangewatch: loss 0.88 to 0.62-0.65 at the end, least probability seen 0.5000; without the sigmoid it is 0.002 at the end.
Cause: forward_arithmetic (a sigmoid too many); no_gradient or dead_units where the closed sigmoid is what is seen. Step: any. Right: sigmoid / logits /
BCELoss. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "no_gradient", "dead_units"], "step": [0, 219], "place": None, "rank": 0, "least": "info",
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)bfloat16"],
          "right": "(?i)sigmoid|logits|BCELoss|saturat"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1905); torch.set_num_threads(1)
FAULTS, POINTS = 6, 40
signature = torch.randn(FAULTS, POINTS).cumsum(1) / 5

model = nn.Sequential(nn.Linear(POINTS, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, FAULTS), nn.Sigmoid())
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    y = (torch.rand(64, FAULTS) < 0.2).float()
    x = y @ signature + 0.2 * torch.randn(64, POINTS)
    p = model(x)
    loss = criterion(p, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "least probability the loss sees", p.sigmoid().min().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
