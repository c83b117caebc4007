"""Captions (made-up words) and pictures' vectors are matched by a contrastive loss; the text tower is the mean of its words' vectors; AdamW, bfloat16 autocast.
FAULT at step 135: one caption has no word left after the tokenizer dropped the unknown ones; the masked mean divides by 0 words, 0/0. Its row of similarities, and by the other direction of the loss all columns, are NaN.
Without Rangewatch: loss 4.67 to 0.47 at step 134, NaN from step 135 on.
Cause: forward_arithmetic / data / mask. Step: 135. Right: an empty caption / division by zero count / clamp(min=1). Wrong: lower the learning rate, GradScaler, temperature."""
EXPECT = {"cause": ["forward_arithmetic", "data", "mask"], "step": [134, 137], "place": None, "rank": None,
          "right": r"(?i)empty|divi|count|clamp|zero|0/0|mean|mask|length|token", "wrong": ["[Ll]ower the learning rate", "GradScaler"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(31); torch.set_num_threads(1)
WORDS = 60
meaning = torch.randn(WORDS, 16)


def pairs(n, empty):
    words = torch.randint(0, WORDS, (n, 7))
    known = torch.rand(n, 7) < 0.7
    known[:, 0] = True
    picture = (meaning[words] * known[..., None]).sum(1) / known.sum(1, keepdim=True) + 0.3 * torch.randn(n, 16)
    if empty:
        known[4] = False
    return words, known, picture


class TextTower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.vocab = nn.Embedding(WORDS, width)
        self.project = nn.Linear(width, width)

    def forward(self, words, known):
        total = (self.vocab(words) * known[..., None]).sum(1)
        return self.project(total / known.sum(1, keepdim=True))


class PictureTower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 2 * width), nn.CELU(), nn.Linear(2 * width, width))

    def forward(self, picture):
        return self.net(picture)


class Match(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.text, self.picture = TextTower(width), PictureTower(width)
        self.log_heat = nn.Parameter(torch.tensor(2.0))

    def forward(self, words, known, picture):
        a, b = F.normalize(self.text(words, known), dim=1), F.normalize(self.picture(picture), dim=1)
        return self.log_heat.exp() * a @ b.T


match = Match()
opt = torch.optim.AdamW(match.parameters(), lr=4e-3)
handle = rangewatch.attach(match, opt)
for step in range(200):
    words, known, picture = pairs(48, empty=step == 135)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sim = match(words, known, picture)
    own = torch.arange(48)
    loss = (F.cross_entropy(sim.float(), own) + F.cross_entropy(sim.float().T, own)) / 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or 133 < step < 138:
        print(step, f"loss {loss.item():.4f} fewest words {int(known.sum(1).min())}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
