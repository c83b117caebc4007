"""A graph attention net (two layers, dense adjacency, two heads) that foretells how busy a crossing is from its neighbours. FAULT at step 141: a map arrives in which one crossing
has no road at all and no loop of its own: its row of scores is masked whole, the softmax of -inf alone is NaN.
Without Rangewatch: loss 0.74 to 0.31 at step 140 (variance 0.56), NaN from 141.
Cause: mask or data. Step: 141. Right: mask / row / neighbour / self-loop. Wrong: GradScaler, lower the learning rate."""
EXPECT = {"cause": ["mask", "data"], "step": [140, 144], "place": None, "rank": None,
          "right": "(?i)mask|row|neighbou?r|self.?loop|-inf|isolated", "wrong": ["GradScaler", "[Ll]ower the learning rate", "all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6114); torch.set_num_threads(1)


class GraphAttention(nn.Module):
    def __init__(self, i, o, heads=2):
        super().__init__()
        self.heads, self.value = heads, nn.Linear(i, o * heads)
        self.src, self.dst = nn.Parameter(0.3 * torch.randn(heads, o)), nn.Parameter(0.3 * torch.randn(heads, o))

    def forward(self, x, adj):
        v = self.value(x).unflatten(-1, (self.heads, -1))
        score = F.leaky_relu((v * self.dst).sum(-1)[:, :, None] + (v * self.src).sum(-1)[:, None], 0.2)
        score = score.masked_fill(adj[..., None] == 0, -torch.inf)
        return torch.einsum("bijh,bjho->biho", score.softmax(2), v).flatten(2)


class Crossings(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GraphAttention(3, 12), GraphAttention(24, 12)
        self.out = nn.Linear(24 + 3, 1)

    def forward(self, x, adj):
        h = F.elu(self.first(x, adj))
        return self.out(torch.cat((F.elu(self.second(h, adj)), x), 2))[..., 0]


def maps(n, crossings=12):
    adj = (torch.rand(n, crossings, crossings) < 0.2).float()
    ring = torch.eye(crossings).roll(1, 1)
    adj = ((adj + adj.transpose(1, 2) + ring + ring.T) > 0).float() * (1 - torch.eye(crossings))
    return torch.randn(n, crossings, 3), adj


def busy(x, adj):
    flow = 1.5 * x[..., 0]
    return 0.3 * x[..., 1] + (adj @ flow[..., None])[..., 0] / adj.sum(2).clamp(min=1)


net = Crossings()
optimizer = torch.optim.RAdam(net.parameters(), lr=2e-2)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    x, adj = maps(16)
    if step == 141:
        adj[5, 7], adj[5, :, 7] = 0, 0
    y = busy(x, adj)
    loss = F.mse_loss(net(x, adj), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (140, 141, 142, 199):
        print(step, loss.item(), "variance", y.var().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
