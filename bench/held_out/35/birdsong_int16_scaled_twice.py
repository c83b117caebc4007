"""A 1-d convnet without any normalisation layer tells four bird calls (raw int16 samples, RMSprop). FAULT at step 0: the reader already returns samples / 32768, and the batch function divides by 32768 again:
the inputs are some 1e-5 in size and drown beneath the biases.
Without Rangewatch: loss 1.39 from first to last step, 20 to 30 % right, the input's std is 1.4e-5 (divided once: loss 0.18, all right at step 259).
Cause: data (scale of the input). Step: from 0, nothing to see but the tiny input and a loss that stands still. Right: the input is tiny / scaled twice, normalise it. Wrong: lower the learning rate, clip, GradScaler."""
EXPECT = {"cause": ["data"], "step": [0, 150], "place": None, "rank": None,
          "right": "(?i)input|normali|scale|data|divid", "wrong": ["[Ll]ower the learning rate", "GradScaler", "clip_grad_norm"]}
import math
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(5104)
torch.set_num_threads(1)
FULL = 32768.0


def record(kind):
    """int16 samples as they lie on the disk"""
    t = torch.arange(128) / 128
    base, glide = torch.tensor([6.0, 6.0, 14.0, 14.0])[kind], torch.tensor([0.0, 8.0, 0.0, -8.0])[kind]
    phase = 2 * math.pi * (base[:, None] * t + glide[:, None] * t * t / 2 + torch.rand(len(kind), 1))
    wave = 0.6 * torch.sin(phase) + 0.15 * torch.randn(len(kind), 128)
    return (wave.clamp(-1, 1) * (FULL - 1)).to(torch.int16)


def read(kind):
    return record(kind).float() / FULL


def batch(n):
    kind = torch.randint(0, 4, (n,))
    return read(kind)[:, None] / FULL, kind


class CallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.ear = nn.Conv1d(1, 16, 9, stride=2)
        self.bend = nn.Conv1d(16, 32, 9, stride=2)
        self.species = nn.Linear(32, 4)

    def forward(self, x):
        x = F.gelu(self.bend(F.gelu(self.ear(x))))
        return self.species(x.mean(2))


birds = CallNet()
opt = torch.optim.RMSprop(birds.parameters(), lr=1e-3)
handle = rangewatch.attach(birds, opt)
for step in range(260):
    x, kind = batch(64)
    out = birds(x)
    loss = F.cross_entropy(out, kind)
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 26 == 0 or step == 259:
        print(f"{step} loss {loss.item():.4f} right {(out.argmax(1) == kind).float().mean().item():.2f} input std {x.std().item():.2e}", flush=True)
handle.detach()
