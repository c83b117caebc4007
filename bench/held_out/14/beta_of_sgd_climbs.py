"""An autoencoder of curves with SGD and Nesterov's momentum, which is raised by 0.001 a step from 0.88. FAULT at step 120: nothing ends it, and it passes 1.
Without Rangewatch: loss 0.55 to 0.026 at step 120, 0.039 at 160, 0.23 at 200, 513 at step 240.
Variant of: momentum_is_warmed_up_past_one (here Nesterov's, an autoencoder).
Cause: optimizer. Step: 120. Right: momentum. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["optimizer"], "step": [100, 220], "place": None, "rank": 0, "wrong": ["GradScaler", "attention mask", "corrupt"],
          "right": "momentum"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1417); torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(40, 24), nn.Tanh(), nn.Linear(24, 6), nn.Tanh(), nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 40))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.88, nesterov=True)
handle = rangewatch.attach(model, optimizer)
t = torch.linspace(0, 1, 40)
for step in range(260):
    optimizer.param_groups[0]["momentum"] = 0.88 + 0.001 * step
    x = torch.sin(6.28 * (t * (1 + torch.rand(48, 1)) + torch.rand(48, 1)))
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item(), optimizer.param_groups[0]["momentum"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
