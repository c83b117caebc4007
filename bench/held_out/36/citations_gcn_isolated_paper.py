"""A two-layer GCN labels papers of a synthetic citation graph from mini-batches of sampled subgraphs; AdamW.
FAULT at step 102: natural. The edges are normalised by deg ** -0.5 without self loops; the first sampled subgraph that holds a paper without any edge gives 0 ** -0.5 = inf, and inf * 0 = NaN in its row.
Without Rangewatch: loss 1.60 to 1.11 and accuracy 0.76 at step 100, NaN from step 102 on, the first step with an isolated paper (accuracy 0.2).
Cause: forward_arithmetic (data too, if one calls the isolated node a bad sample). Step: 102. Right: self loops / clamp the degree / division by zero. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [101, 104], "place": None, "rank": None,
          "right": r"(?i)self.?loop|degree|divi(sion|de)|by zero|0 ?\* ?inf|inf ?\* ?0|pow|\beps|clamp|isolated|normali[sz]", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip the grad"]}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(17)
torch.set_num_threads(1)
PAPERS, WORDS, TOPICS = 1500, 40, 5
topic = torch.randint(0, TOPICS, (PAPERS,))
words = (torch.rand(PAPERS, WORDS) < 0.08 + 0.10 * torch.rand(TOPICS, WORDS)[topic]).float()
same = topic[:, None] == topic[None]
cites = torch.rand(PAPERS, PAPERS) < torch.where(same, 0.08, 0.008)
cites = (cites | cites.T).float().fill_diagonal_(0)


class GraphConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.linear = nn.Linear(i, o)

    def forward(self, x, norm_adj):
        return norm_adj @ self.linear(x)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GraphConv(WORDS, 48), GraphConv(48, TOPICS)

    def forward(self, x, adj):
        d = adj.sum(1).pow(-0.5)
        norm_adj = d[:, None] * adj * d[None]
        return self.conv2(F.relu(self.conv1(x, norm_adj)), norm_adj)


gcn = GCN()
optimizer = torch.optim.AdamW(gcn.parameters(), lr=4e-3)
handle = rangewatch.attach(gcn, optimizer)
for step in range(240):
    nodes = torch.randperm(PAPERS)[:220]
    adj = cites[nodes][:, nodes]
    out = gcn(words[nodes], adj)
    loss = F.cross_entropy(out, topic[nodes])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lonely = int((adj.sum(1) == 0).sum())
    if step % 20 == 0 or lonely and step < 200:
        print(step, f"loss {loss.item():.4f} acc {(out.argmax(1) == topic[nodes]).float().mean().item():.2f} isolated {lonely}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
