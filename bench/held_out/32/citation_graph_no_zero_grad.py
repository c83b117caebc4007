"""A two-layer graph convolution labels the nodes of a small citation graph, full-batch, SGD with momentum. FAULT from step 0: `optimizer.zero_grad()` was never written, so each
backward adds to all gradients before it.
Without Rangewatch: loss 1.61, 1.60 at 20, 3.2 at 40, 243 at 60, 1431 at 100, 126 at the end, test accuracy 0.18 (with zero_grad: 0.020 and 0.96).
Cause: optimizer (zero_grad missing). Step: from 0, shows slowly. Right: zero_grad / gradients accumulate. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["optimizer"], "step": [0, 60], "place": None, "rank": None,
          "right": "(?i)zero_?grad|accumulat|cleared|stale", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(401); torch.set_num_threads(1)
N, C, D = 240, 5, 40
label = torch.randint(0, C, (N,))
same = (label[:, None] == label[None, :]).float()
adj = (torch.rand(N, N) < 0.05 * same + 0.008).float()
adj = ((adj + adj.T) > 0).float() + torch.eye(N)
deg = adj.sum(1).rsqrt()
adj = deg[:, None] * adj * deg[None, :]
feats = torch.randn(C, D)[label] * 0.5 + torch.randn(N, D)
known = torch.rand(N) < 0.6


class GraphConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o)

    def forward(self, x):
        return adj @ self.lin(x)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GraphConv(D, 32), GraphConv(32, C)

    def forward(self, x):
        h = F.dropout(F.relu(self.first(x)), 0.3, self.training)
        return self.second(h)


model = GCN()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    out = model(feats)
    loss = F.cross_entropy(out[known], label[known])
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        acc = (out[~known].argmax(1) == label[~known]).float().mean()
        print(step, loss.item(), "test accuracy", acc.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
