"""An MLP with ReLU for the quality of wines, SGD with momentum. FAULT at step 60: the targets of 3 to 9 go in without centring and the rate is set from 0.02 to 1.5 by a finder of learning
rates that was too bold, for ten steps, then back; the large steps push the hidden layers far below 0: nearly all units of the second are dead for
every wine, four of five of the first give 0.
Without Rangewatch: loss 5.6 to 0.085 at step 60, 16.3 at step 61, 0.7 to 4.5 until step 80, 0.37 to 0.55 from there; zeros behind the ReLUs 0.50 and 0.35 at step 60, 0.78 and
0.99 from step 70 to the end.
Cause: dead_units or learning_rate. Step: 60 to 70. Right: dead / ReLU / learning rate. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["dead_units", "learning_rate", "no_gradient"], "step": [59, 76], "place": None, "rank": None,
          "right": "(?i)dead|relu|learning.?rate|\\blr\\b", "wrong": ["GradScaler", "attention mask", "(?i)all_reduce"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1855); torch.set_num_threads(1)


def wines(n):
    x = torch.randn(n, 11)
    q = 6 + x[:, 0] + 0.6 * torch.relu(x[:, 1] - x[:, 2]) + 0.4 * x[:, 3] * x[:, 4]
    return x, q[:, None].clamp(3, 9)


net = nn.Sequential(nn.Linear(11, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.8)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    optimizer.param_groups[0]["lr"] = 1.5 if 60 <= step < 70 else 0.02
    x, q = wines(64)
    loss = nn.functional.smooth_l1_loss(net(x), q)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 58 < step < 72:
        with torch.no_grad():
            print(step, loss.item(), "zeros", [(net[:k](x) == 0).float().mean().item() for k in (2, 4)], flush=True)
    handle.log(loss=loss.item())
handle.detach()
