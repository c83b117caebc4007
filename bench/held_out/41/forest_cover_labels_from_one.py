"""Forest cover types (tables: twelve numbers, seven types) by an MLP with LayerNorm, AdamW.
FAULT at step 39: the types are numbered 1 to 7, the net has seven outputs (0 to 6); type 7 is rare, and the first batch with one stops the run.
Without Rangewatch: loss 1.71 and 0.60 at batches 0 and 20, IndexError: Target 7 is out of bounds at batch 39.
Cause: crash / data (label out of range). Step: 39. Right: labels - 1. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["crash", "data"], "step": [37, 40], "place": None, "rank": None,
          "right": r"(?i)label|target|class|out of (bounds|range)|index", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import torch
from torch import nn
from torch.utils.data import TensorDataset, DataLoader
import rangewatch

torch.manual_seed(7)
torch.set_num_threads(1)
N = 12000
share = torch.tensor([0.365, 0.4875, 0.0615, 0.0045, 0.0163, 0.065, 0.0002])
cover_type = torch.multinomial(share, N, replacement=True) + 1
terrain = 0.8 * torch.randn(8, 12)[cover_type] + torch.randn(N, 12)

model = nn.Sequential(
    nn.Linear(12, 64), nn.LayerNorm(64), nn.ReLU(),
    nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(),
    nn.Linear(64, 7))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()
handle = rangewatch.attach(model, optimizer)
batches = DataLoader(TensorDataset(terrain, cover_type), batch_size=48, shuffle=True)
step = 0
for x, y in batches:
    if step % 20 == 0 or y.max() > 6:
        print(f"batch {step}, highest label {int(y.max())}", end=" ", flush=True)
    loss = criterion(model(x), y)
    if step % 20 == 0:
        print(f"loss {loss.item():.4f}", flush=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    step += 1
handle.detach()
