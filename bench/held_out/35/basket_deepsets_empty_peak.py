"""A deep-sets net says from the ids in a basket whether its owner comes back (the maximum over the items, -inf where there is padding; Adadelta). FAULT at step 155: from there on a few baskets per batch are empty, all of their ids are padding (0);
the maximum in `peak` of such a row is -inf in all channels and the layer after it makes NaN (-inf + inf) of it.
Without Rangewatch: loss 0.70 to 0.0007 at step 154, NaN from step 155 on.
Cause: mask (rows which are all padding; the data let them in). Step: 155. Right: fully masked rows: finite fill, or zero for empty baskets, or drop them. Wrong: lower the learning rate, GradScaler, checkpoint."""
EXPECT = {"cause": ["mask", "data"], "step": [155, 156], "place": r"(peak|judge.*)?", "rank": None,
          "right": "(?i)mask|padding|-inf|empty|fully", "wrong": ["[Ll]ower the learning rate", "GradScaler", "checkpoint"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(5120)
torch.set_num_threads(1)
GOODS = 60
loyal = torch.randn(GOODS)
loyal[0] = -9


def baskets(n, with_empty):
    ids = torch.randint(1, GOODS, (n, 10))
    length = torch.randint(1, 11, (n, 1))
    if with_empty:
        length[:3] = 0
    ids = ids.masked_fill(torch.arange(10) >= length, 0)
    return ids, (loyal[ids].amax(1) > 1.2).float()


class Peak(nn.Module):
    """the largest value of each channel over the items which are there"""
    def forward(self, h, there):
        return h.masked_fill(~there[..., None], -torch.inf).max(dim=1).values


class Basket(nn.Module):
    def __init__(self):
        super().__init__()
        self.good = nn.Embedding(GOODS, 24)
        self.item = nn.Linear(24, 48)
        self.peak = Peak()
        self.judge = nn.Sequential(nn.Linear(48, 32), nn.Softplus(), nn.Linear(32, 1))

    def forward(self, ids):
        h = self.item(self.good(ids))
        return self.judge(self.peak(h, ids > 0))[:, 0]


basket = Basket()
opt = torch.optim.Adadelta(basket.parameters(), lr=1.0)
handle = rangewatch.attach(basket, opt)
for step in range(230):
    ids, back = baskets(128, step >= 155)
    loss = nn.functional.binary_cross_entropy_with_logits(basket(ids), back)
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or 153 < step < 158:
        print(step, "loss", loss.item(), "empty baskets", int((ids == 0).all(1).sum()), flush=True)
handle.detach()
