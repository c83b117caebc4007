"""HEALTHY: a recommender with nn.Embedding(sparse=True): goods are bought by Zipf's law, so that most of 3,000 rows get no gradient in a step and many none at
all; SparseAdam for the tables, Adam for the rest, in one loop. Row 0 is padding and stays 0.
Without Rangewatch: loss 2.8 to 0.52; some 160 of 3,000 rows have a gradient in a step.
Right: nothing above info."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2040); torch.set_num_threads(1)
GOODS, KINDS = 3000, 16
kind = torch.randint(0, KINDS, (GOODS,))
zipf = 1.0 / torch.arange(1, GOODS + 1).float()
zipf[0] = 0.0
by_kind = torch.stack([zipf * (kind == k) for k in range(KINDS)])


class Shop(nn.Module):
    def __init__(self):
        super().__init__()
        self.good = nn.Embedding(GOODS, 24, padding_idx=0, sparse=True)
        self.taste = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, KINDS))

    def forward(self, basket):
        there = (basket > 0).float().sum(1, keepdim=True)
        return self.taste(self.good(basket).sum(1) / there)


model = Shop()
sparse = torch.optim.SparseAdam(model.good.parameters(), lr=1e-2)
dense = torch.optim.Adam(model.taste.parameters(), lr=3e-3)
handle = rangewatch.attach(model, [sparse, dense])
for step in range(220):
    y = torch.randint(0, KINDS, (48,))
    basket = torch.multinomial(by_kind[y] + 0.01 * zipf, 8, replacement=True)
    basket = basket * (torch.arange(8) < torch.randint(2, 9, (48, 1)))
    loss = F.cross_entropy(model(basket), y)
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "rows with a gradient", len(model.good.weight.grad.coalesce().indices()[0]), flush=True)
    handle.log(loss=loss.item())
handle.detach()
