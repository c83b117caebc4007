"""A bias-free 1-d convolutional denoiser of short audio clips, trained on the distance of spectral magnitudes; every optimizer step sums two shards of the batch. Adamax.
FAULT at step 77: the second shard has a clip of digital silence; the output is exactly 0 and sqrt(re**2 + im**2) has no derivative there (0 / 0). The forward pass is finite, the backward pass of this shard is NaN.
Without Rangewatch: loss 0.19 to 0.03; at 77 the loss is 0.0275 and the gradient NaN, from 78 all is NaN.
Cause: backward_arithmetic / forward_arithmetic (square root at 0). Step: 77 (gradients), 78 (loss). Right: eps under the root, skip silent clips, torch.abs / hypot. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["backward_arithmetic", "forward_arithmetic"], "step": [76, 79], "place": None, "rank": None,
          "right": r"(?i)sqrt|root|eps|backward|derivative|divi|norm|silen|zero|anomaly", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(12)
torch.set_num_threads(1)
N = 96
k = torch.arange(N // 2 + 1)[:, None] * torch.arange(N)[None] * (2 * math.pi / N)
COS, SIN = torch.cos(k).T / math.sqrt(N), torch.sin(k).T / math.sqrt(N)


def magnitude(wave):
    re, im = wave @ COS, wave @ SIN
    return torch.sqrt(re * re + im * im)


def clips(n):
    t = torch.arange(N)
    f = 0.02 + 0.2 * torch.rand(n, 2, 1)
    clean = (torch.sin(2 * math.pi * f * t + 6 * torch.rand(n, 2, 1))).sum(1) * torch.rand(n, 1)
    return clean + 0.3 * torch.randn(n, N), clean


class Denoiser(nn.Module):
    def __init__(self, ch=20):
        super().__init__()
        self.into = nn.Conv1d(1, ch, 9, padding=4, bias=False)
        self.body = nn.Conv1d(ch, ch, 9, padding=4, bias=False)
        self.out = nn.Conv1d(ch, 1, 9, padding=4, bias=False)

    def forward(self, noisy):
        h = torch.tanh(self.into(noisy[:, None]))
        h = h + torch.tanh(self.body(h))
        return self.out(h)[:, 0]


def shard_loss(model, shard):
    noisy, clean = shard
    return (magnitude(model(noisy)) - magnitude(clean)).pow(2).mean()


def main(steps=170, shards=2):
    model = Denoiser()
    optim = torch.optim.Adamax(model.parameters(), lr=4e-3)
    handle = rangewatch.attach(model, optim)
    for step in range(steps):
        total = 0.0
        optim.zero_grad()
        for s in range(shards):
            noisy, clean = clips(12)
            if step == 77 and s == 1:
                noisy[3] = clean[3] = 0.0
            loss = shard_loss(model, (noisy, clean)) / shards
            loss.backward()
            total += loss.item()
        optim.step()
        handle.log(loss=total)
        if step % 20 == 0 or 75 <= step <= 79:
            print(f"step {step:3d} loss {total:.5f} gradient {model.body.weight.grad.norm().item():.5f}", flush=True)
    handle.detach()


main()
