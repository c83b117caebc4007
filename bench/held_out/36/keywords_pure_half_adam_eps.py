"""Spoken keywords (synthetic formant tracks) with a small conv + attention-pooling net. "To save memory" the whole model is turned to float16 with model.half() and trained with torch.optim.Adam as it is.
FAULT at step 0: natural. Adam's eps of 1e-8 is 0 in float16 and squares of small gradients underflow to 0: the update is m / 0 (inf, or NaN for 0 / 0).
Without Rangewatch: loss 1.78 in step 0, after whose update 8189 weights are not finite; NaN from step 1 on. In float32 with eps=1e-4 0.007 and accuracy 1.00.
Cause: optimizer. Step: 0 to 1. Right: larger eps (1e-4) / float32 weights with autocast. Wrong: bad data, attention mask, zero_grad."""
EXPECT = {"cause": ["optimizer"], "step": [0, 2], "place": None, "rank": None,
          "right": r"(?i)\beps|float32|fp32|master|autocast", "wrong": ["(?i)attention mask", r"(?i)call .{0,20}zero_grad", r"(?i)NaN in the (input|data|batch)", "(?i)clip the grad"]}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(16)
torch.set_num_threads(1)
KEYWORDS, BANDS, FRAMES = 6, 20, 30
start = torch.rand(KEYWORDS, 2) * 14 + 3
slope = torch.randn(KEYWORDS, 2) * 0.25


def utterances(n):
    y = torch.randint(0, KEYWORDS, (n,))
    t = torch.arange(FRAMES)
    track = start[y][:, :, None] + slope[y][:, :, None] * t + 0.5 * torch.randn(n, 2, 1)
    bands = torch.arange(BANDS)[:, None]
    spec = torch.exp(-0.5 * (bands - track[:, :, None, :]) ** 2).sum(1)
    return spec + 0.2 * torch.randn(n, BANDS, FRAMES), y


class KeywordSpotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.frontend = nn.Sequential(nn.Conv1d(BANDS, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 32, 5, padding=2), nn.ReLU())
        self.attend = nn.Linear(32, 1)
        self.classify = nn.Linear(32, KEYWORDS)

    def forward(self, spec):
        h = self.frontend(spec).transpose(1, 2)
        w = self.attend(h).softmax(dim=1)
        return self.classify((w * h).sum(1))


model = KeywordSpotter().half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(160):
    spec, y = utterances(32)
    logits = model(spec.half())
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step < 5 or step % 40 == 0 or step == 159:
        bad = sum((~p.isfinite()).sum().item() for p in model.parameters())
        print(f"step {step} loss {loss.item():.4f} acc {(logits.argmax(1) == y).float().mean().item():.2f} non-finite weights {bad}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
