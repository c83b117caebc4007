"""A convolutional net that predicts the membrane potential of a neuron from its input current. FAULT from the first step on: the record and the last line
of the net are in kilovolts (millivolts were converted twice): the squared error is about 1e-11, the gradients about 1e-12, far below the eps of Adam
(1e-8), so that each update is a ten thousandth of what the rate says.
Without Rangewatch: loss 2.6e-11 to 4e-11 from first to last step, the largest gradient 2e-12, no weight has moved by more than 1.0e-4 in 220 steps; in
millivolts weights move by 0.56 and the loss goes to 0.42 (from 43).
Cause: eps (or the scale of the data, or the optimizer). Step: from 0 on. Right: eps / units / scale of the loss or targets. Wrong: GradScaler, mask,
clip."""
EXPECT = {"cause": ["eps", "optimizer", "data", "loss_scale"], "step": [0, 100], "place": None, "rank": 0, "least": "info",
          "wrong": ["attention mask", "(?i)lower the learning rate", "(?i)clip the grad"],
          "right": "(?i)\\beps|epsilon|unit|normali[sz]|standardi[sz]|scale"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1803); torch.set_num_threads(1)


class Neuron(nn.Module):
    def __init__(self):
        super().__init__()
        self.filters = nn.Conv1d(1, 16, 9, padding=4)
        self.mix = nn.Conv1d(16, 16, 5, padding=2)
        self.potential = nn.Conv1d(16, 1, 1)

    def forward(self, current):
        h = F.elu(self.filters(current))
        h = F.elu(self.mix(h))
        return self.potential(h)[:, 0] * 1e-3 * 1e-3


def traces(n):
    current = F.avg_pool1d(torch.randn(n, 1, 72), 9, 1)
    leak = torch.exp(-torch.arange(12.0) / 4).flip(0)[None, None]
    potential = F.conv1d(F.pad(current, (11, 0)), leak)[:, 0]
    return current, potential * 5e-6


model = Neuron()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
first = [p.detach().clone() for p in model.parameters()]
for step in range(220):
    current, potential = traces(16)
    loss = F.mse_loss(model(current), potential)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 219:
        moved = max((p - q).abs().max().item() for p, q in zip(model.parameters(), first, strict=True))
        largest = max(p.grad.abs().max().item() for p in model.parameters())
        print(step, loss.item(), "largest gradient", largest, "moved", moved, flush=True)
    handle.log(loss=loss.item())
handle.detach()
