"""A residual net that forecasts the load of a power grid. FAULT from step 0 on: after a change of the loop nobody calls zero_grad; each step is
taken along the sum of all gradients since the beginning. The loss falls to a seventh, stays there and rises again.
Without Rangewatch: loss 0.71 to 0.14 at step 50, 0.11 to 0.23 up to step 230, 0.29 at the end; gradient norm 2.1, 6.7 (step 10), 8.3, 11.0; with
zero_grad the loss is 0.019 and the norm 0.17 at the end.
Report: pytorch/pytorch#47175 ("an extremely nasty bug ... forgetting to call zero_grad"), IDEA-Research/DAB-DETR#58, tenstorrent/tt-blacksmith#711,
meta-pytorch/torchforge#71, snakers4/silero-vad#699.
Cause: optimizer (gradients not zeroed). Step: 0. Right: zero_grad / accumulate / sum of gradients. Wrong: GradScaler, mask, data."""
EXPECT = {"cause": ["optimizer"], "step": [0, 120], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "zero_grad|zeroed|accumulat|cleared"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1017); torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.outer(F.relu(self.inner(self.norm(x))))


class LoadNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(24, 48)
        self.blocks = nn.Sequential(Block(48), Block(48))
        self.last = nn.Linear(48, 6)

    def forward(self, x):
        return self.last(self.blocks(self.first(x)))


def days(n):
    hour = torch.arange(30.0)
    phase, weekly, level = 24 * torch.rand(n, 1), torch.rand(n, 1), 0.5 + torch.rand(n, 1)
    load = level * (torch.sin((hour + phase) * 6.2832 / 24) + weekly * torch.sin((hour + phase) * 6.2832 / 12)) + 0.1 * torch.randn(n, 30)
    return load[:, :24], load[:, 24:]


model = LoadNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x, y = days(48)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or step == 259:
        norm = sum(p.grad.square().sum() for p in model.parameters()).sqrt().item()
        print(step, loss.item(), "gradient norm", norm, flush=True)
    handle.log(loss=loss.item())
handle.detach()
