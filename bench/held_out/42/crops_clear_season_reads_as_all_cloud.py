"""Crop of a field from a year of satellite passes (24 dates, clouded dates are masked; one hand-written attention block with a query token), AdamW with gradient clipping at 1.
FAULT at step 87: for a batch without any cloud a fast path makes the mask with `torch.ones`, meaning "all are good"; but True means "ignore", so every date is ignored and the softmax is over -inf alone: NaN.
Without Rangewatch: loss 1.50 to 0.002 at 86, NaN from 87.
Cause: mask (inverted where nothing is masked) / forward_arithmetic (softmax of nothing). Step: 87. Right: zeros instead of ones in the fast path. Wrong: lower the learning rate, GradScaler, stronger clipping."""
EXPECT = {"cause": ["mask", "forward_arithmetic"], "step": [86, 89], "place": r"(?i)season|attend|mix|value|crop|^$|softmax", "rank": None,
          "right": r"(?i)mask|softmax|-?inf|ignore|invert", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import math
import torch
from torch import nn
import rangewatch

CROPS, DATES, BANDS = 5, 24, 6
torch.manual_seed(71)
torch.set_num_threads(1)
phenology = torch.randn(CROPS, DATES, BANDS).cumsum(1) * 0.25


class Attend(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.mix = nn.Linear(d, d)

    def forward(self, query, seq, ignore):
        score = self.q(query) @ self.k(seq).transpose(1, 2) / math.sqrt(seq.shape[-1])
        score = score.masked_fill(ignore[:, None, :], float("-inf"))
        return self.mix(score.softmax(-1) @ self.v(seq))


class Season(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.band = nn.Linear(BANDS, d)
        self.date = nn.Parameter(0.3 * torch.randn(DATES, d))
        self.token = nn.Parameter(0.3 * torch.randn(1, 4, d))
        self.attend = Attend(d)
        self.crop = nn.Sequential(nn.LayerNorm(4 * d), nn.Linear(4 * d, 32), nn.ReLU(), nn.Linear(32, CROPS))

    def forward(self, passes, ignore):
        seq = self.band(passes) + self.date
        return self.crop(self.attend(self.token.expand(len(passes), -1, -1), seq, ignore).flatten(1))


def ignored(cloudy):
    if not cloudy.any():
        return torch.ones(cloudy.shape, dtype=torch.bool)
    return cloudy


def fields(n, clear_year):
    crop = torch.randint(0, CROPS, (n,))
    passes = phenology[crop] + 0.7 * torch.randn(n, DATES, BANDS)
    cloudy = torch.rand(n, DATES) < (0.0 if clear_year else 0.3)
    passes = torch.where(cloudy[..., None], 4.0 + torch.randn_like(passes), passes)
    return passes, cloudy, crop


net = Season()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, opt)
for step in range(160):
    passes, cloudy, crop = fields(40, clear_year=step == 87)
    loss = nn.functional.cross_entropy(net(passes, ignored(cloudy)), crop)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 85 < step < 90:
        print("step", step, "loss", round(loss.item(), 4), flush=True)
handle.detach()
