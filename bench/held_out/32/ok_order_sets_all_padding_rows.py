"""A set transformer guesses the price of orders of 0 to 6 items, AdamW; pads are masked with -inf, and one order in ten is empty, so that all its keys are masked.
HEALTHY: every key list begins with a learned "no item" token that is never masked, so that no softmax is over nothing; the empty orders' price is the basic fee. The rows of pad items have no gradient (padding_idx), and a tenth of the rows are all pads as meant.
Without Rangewatch: loss 2.87 to 0.012."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(424); torch.set_num_threads(1)
ITEMS, MAX, W = 20, 6, 32
price = torch.rand(ITEMS + 1) * 2
price[0] = 0


def orders(n):
    count = torch.where(torch.rand(n) < 0.1, 0, torch.randint(1, MAX + 1, (n,)))
    here = torch.arange(MAX) < count[:, None]
    items = torch.randint(1, ITEMS + 1, (n, MAX)) * here
    total = price[items].sum(1)
    return items, 0.5 + total * torch.where(count >= 4, 0.8, 1.0)   # a discount for large orders


class SetPrice(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(ITEMS + 1, W, padding_idx=0)
        self.none = nn.Parameter(torch.randn(1, 1, W))
        self.query = nn.Parameter(torch.randn(1, 4, W))
        self.k, self.v = nn.Linear(W, W), nn.Linear(W, W)
        self.out = nn.Sequential(nn.Linear(5 * W, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, items):
        n = len(items)
        h = torch.cat([self.none.expand(n, -1, -1), self.item(items)], 1)
        bias = torch.zeros(n, 1, MAX + 1).masked_fill(F.pad(items == 0, (1, 0))[:, None], float("-inf"))
        w = torch.softmax(self.query @ self.k(h).transpose(1, 2) / W ** 0.5 + bias, -1)
        pooled = (w @ self.v(h)).flatten(1)
        return self.out(torch.cat([pooled, self.item(items).sum(1)], 1)).squeeze(1)


model = SetPrice()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    items, y = orders(48)
    loss = F.huber_loss(model(items), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "empty orders", int((items == 0).all(1).sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
