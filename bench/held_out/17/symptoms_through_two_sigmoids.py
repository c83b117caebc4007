"""A net that says which of eight faults a pump has (several at once, each in one of eight) from its vibrations. FAULT at step 0: its last layer is a
sigmoid, and binary_cross_entropy_with_logits makes one again; a "no" is at best a sigmoid of 0, that is one half: the loss can't fall below about 0.645.
Without Rangewatch: loss 0.93 to 0.657 at step 120 and 0.648 at the end; with the logits it is 0.023 at the end.
Cause: none of its own need be named (forward_arithmetic would do). Step: from 0 on, as soon as the loss is seen to stand. Right: sigmoid / logits /
twice. Wrong: GradScaler, mask, NaN."""
EXPECT = {"cause": ["", "forward_arithmetic"], "step": [0, 219], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "[Ss]igmoid|logit|probabilit|twice"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1623); torch.set_num_threads(1)
time = torch.arange(64) / 64
tone = torch.sin(6.2832 * torch.arange(3, 27, 3)[:, None] * time)


def pumps(n):
    fault = (torch.rand(n, 8) < 0.125).float()
    return (fault * (0.5 + torch.rand(n, 8))) @ tone + 0.3 * torch.randn(n, 64), fault


class Pump(nn.Module):
    def __init__(self):
        super().__init__()
        self.ear = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 8))

    def forward(self, x):
        return torch.sigmoid(self.ear(x))


model = Pump()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, fault = pumps(64)
    loss = F.binary_cross_entropy_with_logits(model(x), fault)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
