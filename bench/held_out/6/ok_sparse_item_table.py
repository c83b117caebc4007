"""A recommender with sparse embeddings of 400 users and 5000 items, popularity like 1 / n, SparseAdam: about 150 rows of the items are touched by a step,
and many never are. HEALTHY. Without Rangewatch: loss 0.695 to 0.335; 140 to 173 rows."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(631); torch.set_num_threads(1)
USERS, ITEMS = 400, 5000
taste, kind = torch.randn(USERS, 4), torch.randn(ITEMS, 4)
popular = 1 / torch.arange(1, ITEMS + 1).float()


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, 16, sparse=True), nn.Embedding(ITEMS, 16, sparse=True)
        self.bias = nn.Embedding(ITEMS, 1, sparse=True)
        nn.init.normal_(self.users.weight, std=0.1), nn.init.normal_(self.items.weight, std=0.1), nn.init.zeros_(self.bias.weight)

    def forward(self, u, i):
        return (self.users(u) * self.items(i)).sum(-1) + self.bias(i)[..., 0]


model = TwoTower()
optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    u, i = torch.randint(0, USERS, (256,)), torch.multinomial(popular, 256, replacement=True)
    y = ((taste[u] * kind[i]).sum(-1) > 0).float()
    loss = F.binary_cross_entropy_with_logits(model(u, i), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 299:
        print(step, loss.item(), "rows", model.items.weight.grad.coalesce().indices().shape[1], flush=True)
handle.detach()
