"""An MLP that learns one step of a damped pendulum from states, Adam with a search for the best rate that was never stopped. FAULT at step 100: from there
the rate grows by a sixth at each step, 1e-3 to 1 at step 145; the loss rises a thousandfold and more within 50 steps.
Without Rangewatch: loss 0.23 to 0.0039 at step 100, 0.0045 at step 110, 0.13 at step 120, 2.9 at step 130, 14 at step 140, 23 at step 150, 42 at
step 160.
Cause: learning_rate. Step: 100 to the end. Right: learning rate. Wrong: GradScaler, attention mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [105, 160], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b", "wrong": ["GradScaler", "attention mask", "bfloat16"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2513); torch.set_num_threads(1)


def swing(state):
    angle, speed = state.unbind(1)
    for _ in range(5):
        speed = speed + 0.04 * (-2.0 * torch.sin(angle) - 0.1 * speed)
        angle = angle + 0.04 * speed
    return torch.stack((angle, speed), 1)


net = nn.Sequential(nn.Linear(2, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1.1667 ** min(max(0, s - 100), 45))
handle = rangewatch.attach(net, optimizer)
for step in range(170):
    state = 2 * torch.randn(256, 2)
    loss = F.mse_loss(state + net(state), swing(state))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 10 == 0 or step == 169:
        print(step, loss.item(), "lr", schedule.get_last_lr()[0], flush=True)
    handle.log(loss=loss.item())
handle.detach()
