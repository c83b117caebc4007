"""A convolutional net that tells five activities by an accelerometer; the net itself brings the counts of the sensor to g. FAULT from step 90 on: the
recordings come from a cache that is in g already, and are divided by 8192 again: what the net sees is below 0.001.
Without Rangewatch: loss 1.61 to 0.062 at step 89 (all right), 2.00 at step 90, 1.6 (chance) from step 95 to the end, a fifth to a quarter right.
Cause: data. Step: 90. Right: scale of the input / normalised twice. Wrong: GradScaler, mask, clip."""
EXPECT = {"cause": ["data"], "step": [89, 130], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "clip_grad"],
          "right": "scale|normali[sz]|input|data|divid|small|range"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1501); torch.set_num_threads(1)
time = torch.arange(96) / 50
PACE = torch.tensor([0.0, 1.0, 1.8, 2.9, 5.0])  # lying, walking, running, cycling, shaking


class MotionNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(3, 16, 7, stride=2), nn.ReLU(), nn.Conv1d(16, 32, 5, stride=2), nn.ReLU(),
                                  nn.Conv1d(32, 32, 3, stride=2), nn.ReLU())
        self.activity = nn.Linear(32, 5)

    def forward(self, counts):
        return self.activity(self.body(counts / 8192.0).mean(2))  # counts of the sensor to g


def recordings(n):
    y = torch.randint(0, 5, (n,))
    phase = 6.2832 * torch.rand(n, 3, 1)
    wave = torch.sin(6.2832 * (PACE[y][:, None, None] * (1 + 0.1 * torch.randn(n, 1, 1))) * time + phase)
    g = torch.tensor([0.0, 0.0, 1.0])[:, None] + wave * (0.5 + torch.rand(n, 3, 1)) * (y > 0)[:, None, None] + 0.1 * torch.randn(n, 3, 96)
    return (g * 8192).clamp(-32768, 32767).to(torch.int16), y


model = MotionNet()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    counts, y = recordings(48)
    x = counts.float()
    if step >= 90:
        x = x / 8192.0  # the cache of recordings on the fast disk holds g, not counts
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (89, 90, 91, 95, 219):
        print(step, loss.item(), "right", (logits.argmax(1) == y).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
