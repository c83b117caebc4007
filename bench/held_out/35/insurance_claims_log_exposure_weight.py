"""A maxout-like MLP in float64 predicts the yearly claims of an insured car; each row's squared error is weighted with log(days insured) (Adagrad). FAULT at step 170: from there on the table holds contracts signed today, with 0 days:
log(0) = -inf is their weight; the sum of weights is -inf and the loss is NaN.
Without Rangewatch: loss 1.34 to 0.045 at step 169; NaN from step 170 on, for ever.
Cause: loss (its weights; log of 0), or the data. Step: 170. Right: log of zero in the weights of the loss, log1p / clamp the days. Wrong: lower the learning rate, GradScaler, bad weight in a layer."""
EXPECT = {"cause": ["loss", "data"], "step": [170, 171], "place": None, "rank": None,
          "right": "(?i)log|loss|clamp|eps|weights? of|zero", "wrong": ["[Ll]ower the learning rate", "GradScaler", "checkpoint"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(5105)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)


class Maxout(nn.Module):
    def __init__(self, a, b, pieces=3):
        super().__init__()
        self.pieces, self.lin = pieces, nn.Linear(a, b * pieces)

    def forward(self, x):
        return self.lin(x).unflatten(-1, (-1, self.pieces)).amax(-1)


class Claims(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(Maxout(9, 64), Maxout(64, 64))
        self.rate = nn.Linear(64, 1)

    def forward(self, x):
        return self.rate(self.hidden(x)).squeeze(-1)


def contracts(n, today):
    x = torch.randn(n, 9)
    days = torch.randint(30, 366, (n,))
    if today:
        days[torch.rand(n) < 0.02] = 0
    y = 0.7 * x[:, 0] * x[:, 1] + x[:, 2].abs() - 0.4 * x[:, 5] + 0.1 * torch.randn(n)
    return x, y, days


def weighted_loss(pred, y, days):
    w = days.double().log()
    return (w * (pred - y) ** 2).sum() / w.sum()


actuary = Claims()
optimizer = torch.optim.Adagrad(actuary.parameters(), lr=0.02)
handle = rangewatch.attach(actuary, optimizer)
for step in range(280):
    x, y, days = contracts(192, today=step >= 170)
    loss = weighted_loss(actuary(x), y, days)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 34 == 0 or 167 < step < 174:
        print("step", step, "loss", loss.item(), "new contracts", int((days == 0).sum()), flush=True)
handle.detach()
