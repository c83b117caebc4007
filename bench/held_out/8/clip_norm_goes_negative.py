"""A surrogate of a flow (residual MLP), SGD with momentum; the norm at which gradients are clipped is let down in a straight line, 4 * (1 - step /
120). FAULT from step 121 on: the line is not stopped at zero; a negative max_norm turns every gradient round, and the net climbs the loss.
Without Rangewatch: loss 0.35 to 0.007 at step 100, 0.008 at step 120, 0.26 at step 140, 70 at step 160, 6e5 at step 180, 8e13 at step 240.
Report: ml-explore/mlx#4058 (a negative max_norm, of a schedule that runs past its end, silently reverses every gradient).
Cause: clip. Step: 121 and after. Right: clip / max_norm / gradient norm / sign. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["clip"], "step": [120, 170], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "clip|max_norm|gradient norm|sign"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(817); torch.set_num_threads(1)
truth = nn.Sequential(nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 4))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.silu(self.up(x)))


model = nn.Sequential(nn.Linear(8, 32), Block(32), Block(32), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x = torch.randn(64, 8)
    with torch.no_grad():
        y = 2 * truth(x)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 4.0 * (1 - step / 120))
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0:
        print(step, loss.item(), "max_norm", 4.0 * (1 - step / 120), flush=True)
handle.detach()
