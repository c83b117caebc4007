"""A two-tower recommender (users and goods, BCE on clicks, Adam). The table of goods was resized before training: two new goods get rows drawn around the mean of their kin, with the kin's deviation.
FAULT: the last new good has one kin only, the deviation of one row is NaN, so its row of the table is NaN from step 0; it is first on sale at step 120.
Without Rangewatch: loss 0.70 to 0.22 at step 119, NaN at step 120.
Cause: weight. Step: 0 (in the weight), 120 (in the loss). Right: row / embedding / initialise / weight. Wrong: lower the learning rate, attention mask, GradScaler."""
EXPECT = {"cause": ["weight"], "step": [-1, 124], "place": r".*goods.*", "rank": None,
          "right": "(?i)row|embedding|initiali|weight|checkpoint", "wrong": ["[Ll]ower the learning rate", "attention mask", "GradScaler"]}
import warnings
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

warnings.filterwarnings("ignore")
torch.manual_seed(116); torch.set_num_threads(1)
USERS, GOODS, W = 60, 40, 16


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.goods = nn.Embedding(USERS, W), nn.Embedding(GOODS, W)
        self.user_net = nn.Sequential(nn.Linear(W, 32), nn.ReLU(), nn.Linear(32, W))
        self.goods_net = nn.Sequential(nn.Linear(W, 32), nn.ReLU(), nn.Linear(32, W))

    def forward(self, u, g):
        return (self.user_net(self.users(u)) * self.goods_net(self.goods(g))).sum(1)


def resized(table, kin):
    new = nn.Embedding(table.num_embeddings + len(kin), table.embedding_dim)
    with torch.no_grad():
        new.weight[:table.num_embeddings] = table.weight
        for k, like in enumerate(kin):
            rows = table.weight[like]
            new.weight[table.num_embeddings + k] = rows.mean(0) + rows.std(0) * torch.randn(W)
    return new


net = Towers()
net.goods = resized(net.goods, [[3, 8, 21], [17]])
taste, kind = torch.randn(USERS, 3), torch.randn(GOODS + 2, 3)
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(160):
    u = torch.randint(0, USERS, (128,))
    g = torch.randint(0, GOODS + 1 if step < 120 else GOODS + 2, (128,))
    click = ((taste[u] * kind[g]).sum(1) > 0).float()
    if step >= 120:
        g[0] = GOODS + 1
    loss = F.binary_cross_entropy_with_logits(net(u, g), click)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 118 < step < 123:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
