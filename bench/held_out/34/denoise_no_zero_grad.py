"""A Conv1d autoencoder cleans noisy sines (SGD, momentum 0.9). FAULT from step 0: `optimizer.zero_grad()` was forgotten, each backward adds to the gradients of all steps before.
Without Rangewatch: loss 0.71 to 0.49 at step 10, then up: 2.8 at 15, 4.0 at 20, NaN by step 40 (with zero_grad: 0.03).
Cause: optimizer (gradients pile up). Step: 0. Right: zero_grad / accumulate. Wrong: GradScaler, mask, weight initialisation."""
EXPECT = {"cause": ["optimizer"], "step": [0, 25], "place": None, "rank": None,
          "right": "(?i)zero_grad|accumul|pile|cleared|sum of", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(341); torch.set_num_threads(1)


def waves(n, length=64):
    t = torch.arange(length) / length
    f, ph = torch.rand(n, 1) * 4 + 1, torch.rand(n, 1) * 6.28
    clean = torch.sin(6.28 * f * t + ph)
    return (clean + 0.4 * torch.randn(n, length)).unsqueeze(1), clean.unsqueeze(1)


model = nn.Sequential(
    nn.Conv1d(1, 16, 7, stride=2, padding=3), nn.LeakyReLU(0.1),
    nn.Conv1d(16, 24, 5, stride=2, padding=2), nn.LeakyReLU(0.1),
    nn.ConvTranspose1d(24, 16, 4, stride=2, padding=1), nn.LeakyReLU(0.1),
    nn.ConvTranspose1d(16, 1, 4, stride=2, padding=1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    noisy, clean = waves(32)
    loss = nn.functional.mse_loss(model(noisy), clean)
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (5, 10, 15) or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
