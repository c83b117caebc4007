"""A two-tower recommender: users and items as embeddings, trained to foretell the item bought among 64 drawn. FAULT: the item table was resized from 300 to 308 rows before
the training, and the new rows were filled with the mean of the items that never sold, of which there are none: NaN. The first new item comes at step 118.
Without Rangewatch: loss 4.20 to 3.68 at step 117, NaN from 118.
Cause: weight, data or forward_arithmetic. Step: 118 (the rows are NaN from the start). Place: items. Right: embedding / row / resize / NaN. Wrong: GradScaler,
lower the learning rate."""
EXPECT = {"cause": ["weight", "data", "forward_arithmetic"], "step": [0, 120], "place": "items.*", "rank": None,
          "right": "(?i)embedding|row|resiz|init|id\\b|ids\\b", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6107); torch.set_num_threads(1)
USERS, ITEMS = 200, 300


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, 24), nn.Embedding(ITEMS, 24)
        self.user_net, self.item_net = nn.Sequential(nn.Linear(24, 32), nn.ELU(), nn.Linear(32, 24)), nn.Linear(24, 24)

    def forward(self, u, i):
        return self.user_net(self.users(u)) @ self.item_net(self.items(i)).T / 4


def resize(table, rows, sold):
    bigger = nn.Embedding(rows, table.embedding_dim)
    with torch.no_grad():
        bigger.weight[:table.num_embeddings] = table.weight
        bigger.weight[table.num_embeddings:] = table.weight[~sold].mean(0)
    return bigger


taste, kind = torch.randn(USERS, 4), torch.randn(ITEMS + 8, 4)


def purchases(n, rows):
    i = torch.randperm(rows)[:n]
    u = torch.distributions.Categorical(logits=2 * kind[i] @ taste.T).sample()
    return u, i


net = Towers()
net.items = resize(net.items, ITEMS + 8, sold=torch.ones(ITEMS, dtype=torch.bool))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0)
handle = rangewatch.attach(net, optimizer)
for step in range(170):
    u, i = purchases(64, ITEMS if step < 118 else ITEMS + 8)
    loss = F.cross_entropy(net(u, i), torch.arange(64))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (117, 118, 119, 169):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
