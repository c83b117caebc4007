"""Packed pages of log files: a token sees tokens of its own document alone, and never padding (document 0). FAULT at step 100: a batch has a row with padding
at its end; a padded query has document 0, all of its keys are hidden, and its softmax is over -inf alone: NaN.
Without Rangewatch: loss 3.4 to 0.31 at step 100 (padded places have no target), where the weights turn NaN; NaN from step 101 on.
Cause: mask. Step: 100. Right: mask / row / softmax / padding. Wrong: lower the rate, GradScaler."""
EXPECT = {"cause": ["mask"], "step": [99, 101], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "bfloat16"],
          "right": "(?i)mask|row|softmax|padding"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2028); torch.set_num_threads(1)
LONG, CODES, WIDE = 24, 30, 36
follows = torch.randperm(CODES)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.code, self.place = nn.Embedding(CODES, WIDE), nn.Embedding(LONG, WIDE)
        self.norm = nn.LayerNorm(WIDE)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDE, WIDE, bias=False) for _ in range(4))
        self.out = nn.Sequential(nn.LayerNorm(WIDE), nn.Linear(WIDE, 72), nn.SiLU(), nn.Linear(72, CODES))

    def forward(self, x, document):
        h = self.code(x) + self.place.weight
        n = self.norm(h)
        scores = self.q(n) @ self.k(n).transpose(1, 2) / WIDE**0.5
        own = (document[:, :, None] == document[:, None, :]) & (document[:, None, :] > 0)
        share = scores.masked_fill(~(own & own.new_ones(LONG, LONG).tril()), -torch.inf).softmax(2)
        return self.out(h + self.o(share @ self.v(n)))


def pages(n, step):
    cut = torch.randint(6, 18, (n, 1))
    at = torch.arange(LONG + 1)
    document = 1 + (at >= cut).long()
    x = torch.randint(0, CODES, (n, 1)).repeat(1, LONG + 1)
    for k in range(1, LONG + 1):
        x[:, k] = torch.where(document[:, k] == document[:, k - 1], follows[x[:, k - 1]], torch.randint(0, CODES, (n,)))
    y = x[:, 1:].clone()
    if step >= 100 and step % 25 == 0:
        document[3, 20:], x[3, 20:], y[3, 19:] = 0, 0, -100
    return x[:, :-1], document[:, :-1], y


model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, document, y = pages(24, step)
    loss = F.cross_entropy(model(x, document).flatten(0, 1), y.flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 103 or step == 199:
        print(step, loss.item(), "NaN in weights", sum(int(p.isnan().sum()) for p in model.parameters()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
