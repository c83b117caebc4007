"""Matrix factorisation with biases, RMSprop with eps=0. FAULT from step 0: rows of the embeddings that no sample touched have gradient
0 and square average 0: 0/0 = NaN is written to them in the first update. Cause: optimizer (eps), step 0 (seen at 0 or 1), place users/items.
Right: eps. Wrong: learning rate, batch, mask."""
EXPECT = {"cause": ["optimizer"], "step": [0, 1], "place": r"(users|items|user_bias|item_bias)(\.weight)?", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "leave out samples", "GradScaler"], "right": "eps"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Factor(nn.Module):
    def __init__(self, n=200, m=150, k=12):
        super().__init__()
        self.users, self.items = nn.Embedding(n, k), nn.Embedding(m, k)
        self.user_bias, self.item_bias = nn.Embedding(n, 1), nn.Embedding(m, 1)
        for e in (self.users, self.items):
            nn.init.normal_(e.weight, std=0.1)
    def forward(self, u, i):
        return (self.users(u) * self.items(i)).sum(1) + (self.user_bias(u) + self.item_bias(i)).squeeze(1)

truth_u, truth_i = torch.randn(200, 4), torch.randn(150, 4)
net = Factor()
opt = torch.optim.RMSprop(net.parameters(), lr=1e-3, alpha=0.99, eps=0.0)
rangewatch.attach(net, opt)
for step in range(150):
    u, i = torch.randint(0, 200, (64,)), torch.randint(0, 150, (64,))
    rating = (truth_u[u] * truth_i[i]).sum(1)
    loss = (net(u, i) - rating).abs().mean()
    opt.zero_grad(set_to_none=False)
    loss.backward()
    opt.step()
