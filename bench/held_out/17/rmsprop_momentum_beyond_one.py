"""A net that predicts the next step of a pendulum with friction. RMSprop with momentum, which is warmed up by 0.006 a step from 0.3 and has no upper bound.
FAULT from step 117 on: it is above 1, each update is longer than the one before it, whatever the gradient says.
Without Rangewatch: loss 0.46 to 0.0009 at step 110, 0.0018 at step 120, 0.007 at step 140, 0.042 at step 150, 19 at step 160, 2.7e9 at step 170, inf at
the end.
Cause: optimizer (the momentum; learning_rate would do). Step: 112 (where the momentum nears 1) to 165. Right: momentum / diverges / optimizer /
schedule. Wrong: GradScaler, mask, data."""
EXPECT = {"cause": ["optimizer", "learning_rate"], "step": [112, 165], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "momentum|optimi[sz]er|diverg|schedul|update"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1613); torch.set_num_threads(1)


def swing(state):
    angle, speed = state.unbind(1)
    for _ in range(5):
        speed = speed - 0.08 * (4 * torch.sin(angle) + 0.3 * speed)
        angle = angle + 0.08 * speed
    return torch.stack((angle, speed), 1)


class Pendulum(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(4, 64)
        self.block = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
        self.drop = nn.Linear(64, 2)

    def forward(self, s):
        h = self.lift(torch.stack((s[:, 0].sin(), s[:, 0].cos(), s[:, 0], s[:, 1]), 1))
        return s + self.drop(F.gelu(h + self.block(h)))


model = Pendulum()
optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-4, momentum=0.3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    optimizer.param_groups[0]["momentum"] = 0.3 + 0.006 * step
    state = torch.randn(128, 2) * torch.tensor([1.2, 1.5])
    loss = F.mse_loss(model(state), swing(state))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or step == 199:
        print(step, loss.item(), "momentum", round(optimizer.param_groups[0]["momentum"], 3), flush=True)
    handle.log(loss=loss.item())
handle.detach()
