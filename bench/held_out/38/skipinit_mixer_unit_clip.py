"""A residual MLP-mixer (SkipInit: each block has a `gain` that begins at 0) reads 16 patches of synthetic textures; Nesterov SGD, float32. Gradients are clipped per value, to 5 % of the value's own weight (a home-made adaptive clip).
FAULT from step 0: the adaptive clip has no floor (max(|w|, 1e-3) in the paper): a weight that is 0 may have a gradient of 0 only. All gains stay at 0 for good, so that no block is ever used, and the layers in them have no gradient.
Without Rangewatch: loss 1.113 to 1.098 in 300 steps, which is chance (log 3), largest gain 0.0 exactly throughout (with a floor of 0.02: loss 0.36 at step 150, 0.033 at step 299).
Cause: clip (or no_gradient). Step: from 0. Right: a floor / eps for the clip's limit; the gains do not move. Wrong: GradScaler, attention mask, raise dropout."""
EXPECT = {"cause": ["clip", "no_gradient"], "step": [0, 150], "place": r"stages(\.\d+)?(\.(gain|tokens|channels)(\.weight|\.bias)?)?", "rank": None,
          "right": r"(?i)clip|floor|eps|zero|gain", "wrong": ["GradScaler", "attention mask", "[Mm]issing values"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(264); torch.set_num_threads(1)


def textures(n):
    y = torch.randint(0, 3, (n,))
    base = torch.randn(n, 1, 12)
    sign = torch.where(y == 0, 1.0, -1.0)[:, None, None]
    other = torch.where((y == 1)[:, None, None], sign * base, torch.randn(n, 1, 12))
    other = torch.where((y == 0)[:, None, None], base, other)
    grid = torch.cat([base, other] * 8, 1)
    return grid + 0.5 * torch.randn(n, 16, 12), y


class Stage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.channels = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.gain = nn.Parameter(torch.zeros(2))

    def forward(self, h):
        h = h + self.gain[0] * self.tokens(h.transpose(1, 2)).transpose(1, 2)
        return h + self.gain[1] * self.channels(h)


class Mixer(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.embed = nn.Linear(12, width)
        self.stages = nn.ModuleList([Stage(width) for _ in range(3)])
        self.verdict = nn.Linear(width, 3)

    def forward(self, x):
        h = self.embed(x)
        for stage in self.stages:
            h = stage(h)
        return self.verdict(h.square().mean(1))


def adaptive_clip(parameters, part=0.05):
    for p in parameters:
        if p.grad is not None:
            limit = part * p.detach().abs()
            p.grad.copy_(torch.minimum(torch.maximum(p.grad, -limit), limit))


mixer = Mixer()
sgd = torch.optim.SGD(mixer.parameters(), lr=0.3, momentum=0.9, nesterov=True)
handle = rangewatch.attach(mixer, sgd)
for step in range(300):
    x, y = textures(32)
    out = mixer(x)
    loss = F.cross_entropy(out, y)
    sgd.zero_grad()
    loss.backward()
    adaptive_clip(mixer.parameters())
    sgd.step()
    if step % 30 == 0 or step == 299:
        gains = torch.stack([s.gain for s in mixer.stages]).abs().max().item()
        print(step, f"loss {loss.item():.4f} right {(out.argmax(1) == y).float().mean().item():.2f} largest gain {gains}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
