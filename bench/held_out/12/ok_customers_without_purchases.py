"""Churn of customers by the maximum over their purchases; a third of them has none, and gets a learnt row in place of the maximum of nothing (which
torch.where replaces before it goes on). HEALTHY.
Without Rangewatch: loss 0.70 to 0.28 at step 160 and 0.10 at the end; 16 to 26 of 64 customers are without purchases in each batch."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1233); torch.set_num_threads(1)


class Churn(nn.Module):
    def __init__(self):
        super().__init__()
        self.product = nn.Embedding(50, 16, padding_idx=0)
        self.price = nn.Linear(1, 16)
        self.none = nn.Parameter(torch.zeros(16))
        self.out = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids, price):
        h = torch.tanh(self.product(ids) + self.price(price[..., None])).masked_fill((ids == 0)[..., None], float("-inf"))
        highest = h.amax(1)
        return self.out(torch.where((ids > 0).any(1, keepdim=True), highest, self.none)).squeeze(1)


loyal = torch.randn(50)
model = Churn()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    ids = torch.randint(1, 50, (64, 6))
    ids[torch.arange(6) >= torch.randint(-2, 7, (64, 1))] = 0
    price = torch.rand(64, 6) * (ids > 0)
    best = torch.where(ids > 0, loyal[ids] + price, torch.tensor(-1.5)).amax(1)
    y = (best < 0.8).float()
    loss = F.binary_cross_entropy_with_logits(model(ids, price), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "without purchases", (ids == 0).all(1).sum().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
