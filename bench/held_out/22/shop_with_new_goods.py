"""A recommender: factors of customers and goods and a small net over both say whether someone buys. FAULT at step 100: 120 new goods come to the shop;
the table of goods is replaced by a larger one into which the old rows are copied, but the optimizer still holds the old table. The new table gets
gradients and no step: it stands still to the end.
Without Rangewatch: loss 1.22 to 0.070 at step 99, 1.87 at step 100, 0.54 at the end; the table has moved by exactly 0 (given to the optimizer: 0.07, moved by 4).
Causes: optimizer (a parameter it does not have). Right: give the optimizer the new parameter / make it anew. Wrong: change the rate, a mask, clip."""
EXPECT = {"cause": ["optimizer"], "step": [99, 239], "place": "goods.*", "rank": 0,
          "right": "(?i)optimizer|param_group|add_param", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2205); torch.set_num_threads(1)
PEOPLE, OLD, NEW = 300, 80, 200
taste, kind = torch.randn(PEOPLE, 3), torch.randn(NEW, 3)


class Shop(nn.Module):
    def __init__(self):
        super().__init__()
        self.people, self.goods = nn.Embedding(PEOPLE, 8), nn.Embedding(OLD, 8)
        self.judge = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, who, what):
        both = self.people(who) * self.goods(what)
        return both.sum(1) + self.judge(both)[:, 0]

    def grow(self, n):
        table = nn.Embedding(n, 8)
        with torch.no_grad():
            table.weight[: self.goods.num_embeddings] = self.goods.weight
        self.goods = table


model = Shop()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 100:
        model.grow(NEW)
        start = model.goods.weight.detach().clone()
    who, what = torch.randint(0, PEOPLE, (1024,)), torch.randint(0, OLD if step < 100 else NEW, (1024,))
    bought = (1.5 * (taste[who] * kind[what]).sum(1) > 0).float()
    loss = F.binary_cross_entropy_with_logits(model(who, what), bought)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step in (99, 239):
        print(step, loss.item(), "" if step < 100 else "table moved", "" if step < 100 else (model.goods.weight - start).abs().max().item(), flush=True)
handle.detach()
