"""A net of four layers with tanh, 128 wide, that tells wines apart by thirteen figures. FAULT from the start: each weight is drawn with torch.randn, a
deviation of 1 rather than 1 / sqrt(128); each tanh is at its end, little gradient comes through, and the logits are of size 11.
Without Rangewatch: loss 14.1 to 3.0, four of five tanh are beyond 0.99 to the end; with the default init the loss is 0.39.
Cause: weight (the init), or dead_units (saturated), forward_arithmetic. Step: 0. Right: init / Xavier / Kaiming / saturate / scale. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["weight", "dead_units", "forward_arithmetic", "backward_arithmetic", "(none)"], "step": [0, 160], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "(?i)init|xavier|kaiming|saturat|deviation|fan|norm|std", "least": "info"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2022); torch.set_num_threads(1)
mean = torch.randn(6, 13)
model = nn.Sequential(nn.Linear(13, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 6))
for layer in model:
    if isinstance(layer, nn.Linear):
        layer.weight.data = torch.randn(layer.weight.shape)
        layer.bias.data = torch.randn(layer.bias.shape)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    y = torch.randint(0, 6, (32,))
    x = mean[y] + 0.8 * torch.randn(32, 13)
    h = model[:6](x)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "share of |tanh| > 0.99", (h.abs() > 0.99).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
