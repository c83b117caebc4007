"""A net finds the tempo of a drum track, float16 autocast. FAULT from the first step on: a GradScaler is made within the loop. Each begins at 65536, the
gradients of the sum of squared errors overflow at that scale, the step is skipped, and what the scaler has learned of it is thrown away with it.
Without Rangewatch: loss 1,566 to 1,218 (by the batches alone), no weight has moved, the scale reads 32768 after each step; with one scaler made before the
loop it comes down to 32 and the loss is 14.5 at the end.
Cause: loss_scale (or backward_arithmetic; optimizer, as no weight ever moves). Step: from 0 on. Right: scale / scaler / skip / overflow / init_scale.
Wrong: lower the learning rate, mask."""
EXPECT = {"cause": ["loss_scale", "backward_arithmetic", "optimizer"], "step": [0, 60], "place": None, "rank": 0,
          "wrong": ["attention mask", "(?i)lower the learning rate"],
          "right": "(?i)scal|skip|overflow"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1828); torch.set_num_threads(1)


class Tempo(nn.Module):
    def __init__(self):
        super().__init__()
        self.onset = nn.Conv1d(1, 16, 5, padding=2)
        self.pulse = nn.Conv1d(16, 32, 15, stride=3)
        self.tempo = nn.Sequential(nn.Flatten(), nn.Linear(32 * 28, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.tempo(torch.relu(self.pulse(torch.relu(self.onset(x)))))[:, 0]


def tracks(n):
    period = 6 + 10 * torch.rand(n, 1)
    beat = ((torch.arange(96) / period + torch.rand(n, 1)) % 1 < 1.5 / period).float()
    return (beat + 0.1 * torch.randn(n, 96))[:, None], 60 / period[:, 0]


model = Tempo()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
first = model.onset.weight.detach().clone()
for step in range(180):
    x, tempo = tracks(32)
    scaler = torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", torch.float16):
        estimate = model(x)
    loss = (estimate.float() - tempo).square().sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), "scale", scaler.get_scale(), "moved", (model.onset.weight - first).abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
