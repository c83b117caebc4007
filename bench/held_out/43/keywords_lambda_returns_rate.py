"""Keyword spotting on small spectrograms by an MLP-mixer, AdamW, warm-up and cosine by LambdaLR (thread: 'LambdaLR: my learning rate is far smaller than I set').
FAULT at step 0: the lambda returns the learning RATE (up to 1e-3), while LambdaLR multiplies it by the optimizer's lr 1e-3; the true rate is at most 1e-6.
Without Rangewatch: loss 2.28 to 2.38 and accuracy 0 to 0.16 from first to last; the optimizer's lr is 3e-8 at step 0, 1e-6 at most.
Cause: learning_rate (far too small). Step: from 0. Right: let the lambda return a factor, lr=1 in the optimizer, a higher rate. Wrong: lower the learning rate, clip, GradScaler."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)schedul|lambda|factor|(raise|increase|higher|larger).*(rate|lr)|(rate|lr).*(small|tiny|low|higher|larger|raise)", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import math
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
import rangewatch

torch.manual_seed(51); torch.set_num_threads(1)
WORDS, FRAMES, BANDS = 10, 20, 16
spoken = torch.randn(WORDS, FRAMES, BANDS)
max_lr, warmup, total = 1e-3, 30, 200


def get_lr(it):
    if it < warmup:
        return max_lr * (it + 1) / warmup
    return 0.5 * max_lr * (1 + math.cos(math.pi * (it - warmup) / (total - warmup)))


class MixerBlock(nn.Module):
    def __init__(self, t, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.token = nn.Sequential(nn.Linear(t, 2 * t), nn.GELU(), nn.Linear(2 * t, t))
        self.channel = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        x = x + self.token(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.n2(x))


class KWS(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.stem = nn.Linear(BANDS, d)
        self.blocks = nn.Sequential(*[MixerBlock(FRAMES, d) for _ in range(3)])
        self.head = nn.Linear(d, WORDS)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean(1))


kws = KWS()
optimizer = torch.optim.AdamW(kws.parameters(), lr=max_lr, weight_decay=0.01)
scheduler = LambdaLR(optimizer, lr_lambda=get_lr)
handle = rangewatch.attach(kws, optimizer)
for it in range(total):
    y = torch.randint(0, WORDS, (32,))
    x = spoken[y] + 0.7 * torch.randn(32, FRAMES, BANDS)
    out = kws(x)
    loss = nn.functional.cross_entropy(out, y, label_smoothing=0.05)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    handle.log(loss=loss.item())
    if it % 20 == 0 or it == total - 1:
        print(f"iter {it}: loss {loss.item():.4f}, acc {(out.argmax(1) == y).float().mean().item():.2f}", flush=True)
handle.detach()
