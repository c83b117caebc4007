"""A conv net that counts the emitters in frames of photons; the dark frame is taken off, then the root stabilises the variance (Anscombe). FAULT at step 108: the dark frame of the new night was
taken with a longer exposure: after its subtraction pixels are below -3/8, and the root gives NaN.
Without Rangewatch: loss 9.5 to 1.26 at step 107, NaN from step 108 to the end (8900 of 9600 pixels are NaN).
Cause: data or forward_arithmetic. Step: 108. Right: sqrt / negative / clamp / input. Wrong: GradScaler, attention mask, learning rate."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [107, 111], "place": None, "rank": None,
          "right": "(?i)sqrt|root|negativ|clamp|input|batch|data|preproc", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3021); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.arange(20.), torch.arange(20.), indexing="ij")
nights = [torch.full((20, 20), 4.0), torch.full((20, 20), 26.0)]


def frames(n):
    count = torch.randint(0, 6, (n,))
    light = torch.zeros(n, 20, 20)
    for k in range(5):
        a, b = 3 + 14 * torch.rand(2, n, 1, 1)
        light += (k < count).view(-1, 1, 1) * 40 * torch.exp(-((xx - a) ** 2 + (yy - b) ** 2) / 3)
    return torch.poisson(light + 12).clamp(min=4), count.float()


net = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3), nn.ReLU(), nn.Flatten(),
                    nn.Linear(24 * 64, 1))
optimizer = torch.optim.Adamax(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(160):
    raw, count = frames(24)
    dark = nights[step // 108]
    x = 2 * torch.sqrt(raw - dark + 3 / 8)
    loss = F.mse_loss(net(x[:, None])[:, 0], count)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (107, 108, 109, 159):
        print(step, loss.item(), "NaN in the input", x.isnan().sum().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
