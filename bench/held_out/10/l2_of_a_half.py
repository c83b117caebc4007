"""A convolutional net that names instruments by a short sound. FAULT from step 0 on: Adam with weight_decay=0.5 (0.5 was the dropout of the same table).
The L2 term outweighs the gradient of the loss, the weights go to zero and the net gives the same answer for all.
Without Rangewatch: loss 2.09 to 2.08 (log of 8), norm of the hidden weights 3.96 to 0.000002; without weight decay it falls to 0.13.
Report: deeplearning4j/deeplearning4j#8737 (weight decay: no convergence), JulianKlug/PerfusionCT-Net#34, tflearn/tflearn#772 (the right size with Adam),
mapbox/robosat#166.
Cause: optimizer (weight decay) or weight (they shrink to zero). Step: 0. Right: weight decay / L2 / shrink. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["optimizer", "weight"], "step": [0, 140], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "weight[ _]decay|decay|L2|shrink|shrunk"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1018); torch.set_num_threads(1)
INSTRUMENTS = 8
partials = torch.rand(INSTRUMENTS, 6)
time = torch.arange(96) / 96


class SoundNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 24, 9, stride=2), nn.ReLU(), nn.Conv1d(24, 48, 9, stride=2), nn.ReLU())
        self.hidden, self.name = nn.Linear(48, 48), nn.Linear(48, INSTRUMENTS)

    def forward(self, x):
        return self.name(F.relu(self.hidden(self.conv(x[:, None]).amax(2))))


def sounds(n):
    which, pitch = torch.randint(0, INSTRUMENTS, (n,)), 3 + 2 * torch.rand(n, 1, 1)
    waves = torch.sin(6.2832 * pitch * torch.arange(1, 7)[:, None] * time + 6.2832 * torch.rand(n, 6, 1))
    return (partials[which][:, :, None] * waves).sum(1) + 0.1 * torch.randn(n, 96), which


model = SoundNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=0.5)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    x, y = sounds(48)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or step == 299:
        print(step, loss.item(), "norm of the hidden weights", model.hidden.weight.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
