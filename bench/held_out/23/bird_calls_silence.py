"""A net of one-dimensional convolutions that names birds by their calls: learned filters, the energy of each in 16 frames, its logarithm, a classifier.
FAULT at step 95: a recording in the batch is cut and its last half is exactly 0; the filters have no bias, the energy is 0 and log(0) is -inf.
Without Rangewatch: loss 1.75 to 0.001 at step 80, NaN at step 95 and at each step after it.
Causes: forward_arithmetic (log of 0), data (the silence). Right: log / epsilon / clamp / zero. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [94, 96], "place": None, "rank": 0,
          "right": "(?i)log|eps|clamp|zero|input|batch", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2307); torch.set_num_threads(1)
time = torch.arange(512) / 512


class LogEnergy(nn.Module):
    def forward(self, x):
        return torch.log(F.avg_pool1d(x * x, 32))


model = nn.Sequential(nn.Conv1d(1, 20, 25, padding=12, bias=False), LogEnergy(), nn.Conv1d(20, 32, 3), nn.SiLU(), nn.Flatten(), nn.Linear(32 * 14, 5))
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(170):
    y = torch.randint(0, 5, (24,))
    pitch = 20 + 18 * y[:, None] + 3 * torch.randn(24, 1)
    x = torch.sin(6.2832 * pitch * (time + 0.3 * time ** 2)) * (0.3 + torch.rand(24, 1)) + 0.3 * torch.randn(24, 512)
    if step == 95:
        x[13, 256:] = 0.0
    loss = F.cross_entropy(model(x[:, None]), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 93 < step < 98:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
