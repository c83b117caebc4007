"""A net that tells speakers apart: convolution over frames, then mean and spread over time, the spread as sqrt(E[x^2] - E[x]^2). FAULT from step 100 on:
recordings of one office have a large constant offset (3000); in float32 the difference of the two great numbers is sometimes below 0, its root NaN.
Without Rangewatch: loss 2.77 to 0.017 at step 99, NaN at step 100 and at each step after it.
Causes: forward_arithmetic (root of a negative number), data (the offset). Right: sqrt / variance / clamp / negative / input. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [99, 101], "place": None, "rank": 0,
          "right": "(?i)sqrt|root|varia|clamp|negativ|eps|input|data", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2331); torch.set_num_threads(1)
tone = torch.randn(12, 10)


class Spread(nn.Module):
    def forward(self, h):
        mean = h.mean(2)
        return torch.cat((mean, torch.sqrt((h * h).mean(2) - mean * mean)), 1)


net = nn.Sequential(nn.Conv1d(10, 32, 3), nn.Softplus(), nn.Conv1d(32, 32, 3), Spread(), nn.BatchNorm1d(64), nn.Linear(64, 12))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(170):
    who = torch.randint(0, 12, (36,))
    frames = tone[who][:, :, None] * (1 + 0.5 * torch.randn(36, 1, 30)) + 0.5 * torch.randn(36, 10, 30)
    if step >= 100:
        frames[:6] = 3000.0 + 0.001 * frames[:6]
    loss = nn.functional.cross_entropy(net(frames), who)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 103:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
