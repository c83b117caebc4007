"""An autoencoder of gene expression. FAULT at steps 100 to 109: a sweep of rates that runs beside it writes into the same param group, and for ten steps the
rate is 0.3 instead of 0.001.
Without Rangewatch: loss 0.98 to 0.15 at step 100; 332 at step 101, 2.4 million at step 103; 10 500 at step 220 with the old rate.
Variant of: losses: rate_is_300_times_as_high_for_ten_steps.
Cause: learning_rate. Step: 100 (visible in the loss from 101 on). Right: learning rate / lr / schedule. Wrong: GradScaler, attention mask, log."""
EXPECT = {"cause": ["learning_rate"], "step": [99, 104], "place": None, "rank": None,
          "wrong": ["GradScaler", "attention mask"],
          "right": "[Ll]earning rate|\\blr\\b|rate|schedul"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1114); torch.set_num_threads(1)
pathway = torch.randn(6, 80)


def genes(n):
    return F.softplus(torch.randn(n, 6) @ pathway) / 2 + 0.1 * torch.randn(n, 80)


model = nn.Sequential()
model.add_module("encode", nn.Sequential(nn.Linear(80, 48), nn.ELU(), nn.Linear(48, 8)))
model.add_module("decode", nn.Sequential(nn.Linear(8, 48), nn.ELU(), nn.Linear(48, 80)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 100:
        optimizer.param_groups[0]["lr"] *= 300  # meant for another optimizer
    if step == 110:
        optimizer.param_groups[0]["lr"] /= 300
    x = genes(64)
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 104 or 107 < step < 112:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
