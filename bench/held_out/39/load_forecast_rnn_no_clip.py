"""Hourly electric load (daily and weekly cycle, one spike now and then) forecast by a vanilla ReLU RNN over 72 hours, plain SGD.
FAULT at step 0 (natural): no gradient clipping on a recurrent net over 72 steps; its identity-initialised recurrence has a factor of 1 and the long sum gives a gradient norm of 2180, the first update makes the factor exceed 1 and the forward explodes.
Without Rangewatch: mse 5.8 with a gradient norm of 2.2e3 at step 0, inf at step 1, NaN from 2 on.
Cause: learning_rate / clip (exploding gradient) / backward_arithmetic. Step: 0. Right: clip the gradient norm, smaller rate, a gated cell. Wrong: raise the learning rate, attention mask, zero_grad."""
EXPECT = {"cause": ["clip", "learning_rate", "backward_arithmetic"], "step": [0, 3], "place": None, "rank": None,
          "right": r"(?i)clip|explo|learning rate|recurrent", "wrong": [r"(?i)(raise|increase) the learning rate", r"(?i)attention mask", r"(?i)zero_grad"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(24); torch.set_num_threads(1)
HOURS = 72
hour = torch.arange(6000).float()
load = torch.sin(2 * math.pi * hour / 24) + 0.5 * torch.sin(2 * math.pi * hour / 168) + 0.15 * torch.randn(6000)
load = load + 2.0 * (torch.rand(6000) < 0.01).float()
load = (load - load.mean()) / load.std()


def windows(n):
    start = torch.randint(0, 6000 - HOURS - 1, (n,))
    return torch.stack([load[s:s + HOURS] for s in start])[..., None], torch.stack([load[s + HOURS] for s in start])


class LoadRNN(nn.Module):
    def __init__(self, units=48):
        super().__init__()
        self.recurrent = nn.RNN(1, units, nonlinearity="relu", batch_first=True)
        self.forecast = nn.Linear(units, 1)
        nn.init.eye_(self.recurrent.weight_hh_l0)

    def forward(self, x):
        return self.forecast(self.recurrent(x)[0][:, -1]).squeeze(1)


rnn = LoadRNN()
optimizer = torch.optim.SGD(rnn.parameters(), lr=2e-3)
handle = rangewatch.attach(rnn, optimizer)
for step in range(200):
    x, y = windows(24)
    loss = nn.functional.mse_loss(rnn(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or step < 10:
        norm = sum(p.grad.pow(2).sum() for p in rnn.parameters()).sqrt().item()
        print(step, f"mse {loss.item():.4g} gradient norm {norm:.3g}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
