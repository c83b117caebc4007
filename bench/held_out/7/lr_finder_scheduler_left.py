"""A residual MLP for protein properties, momentum SGD. The first 60 steps are a learning rate finder (1e-4 to 0.05, exponential); weights and
momentum are then restored and lr set to 0.01, but the finder's ExponentialLR stays the loop's scheduler. FAULT from step 60 on: lr grows by 11 % a
step without end; the loss falls at first, then rises and the weights overflow.
Without Rangewatch: loss 0.37 at step 60, 0.05 at step 88 (lr 0.2), 0.47 at step 95, 7.4 at step 99, 3e21 at step 101 (lr 0.77), NaN from step 102
on.
Report: Lightning-AI/pytorch-lightning#12670 (divergence after lr_find: its scheduler stays), Lightning-AI/pytorch-lightning#6675.
Cause: learning_rate. Step: 60 to 102. Right: learning rate / schedule. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["learning_rate"], "step": [60, 103], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "learning rate|lr\\b|schedul|step size|warm"}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(707); torch.set_num_threads(1)
truth = nn.Sequential(nn.Linear(30, 64), nn.Tanh(), nn.Linear(64, 1))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.silu(self.up(x)))


model = nn.Sequential(nn.Linear(30, 32), Residual(32), Residual(32), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
finder = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=(0.05 / 1e-4) ** (1 / 60))
before = copy.deepcopy(model.state_dict())
scheduler = finder
for step in range(220):
    if step == 60:  # the search is over: everything back, except the scheduler
        model.load_state_dict(before)
        optimizer.state.clear()
        for group in optimizer.param_groups:
            group["lr"] = 0.01
    x = torch.randn(64, 30)
    with torch.no_grad():
        y = 3 * truth(x)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 10 == 0:
        print(step, loss.item(), optimizer.param_groups[0]["lr"], flush=True)
handle.detach()
