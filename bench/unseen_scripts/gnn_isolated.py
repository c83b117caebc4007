"""Graph network with index_add aggregation and mean by degree. FAULT from step 130: graphs with an isolated node come: 0/0 = NaN in
conv1's forward. Cause: forward_arithmetic, step 130, place conv1. Right: clamp the degree (division by zero). Wrong: lr, mask, weights,
'samples that are not finite'."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [130, 130], "place": r"conv1.*", "rank": 0,
          "wrong": ["learning rate", "[Mm]ask", "checkpoint", "samples that are not finite", "GradScaler", "bfloat16"], "right": "divi|zero|0/0"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class MeanConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.self_lin, self.nbr_lin = nn.Linear(i, o), nn.Linear(i, o, bias=False)
    def forward(self, x, src, dst):
        agg = torch.zeros_like(x).index_add(0, dst, x[src])
        deg = torch.zeros(len(x)).index_add(0, dst, torch.ones(len(dst)))
        return self.self_lin(x) + self.nbr_lin(agg / deg[:, None])

class GNN(nn.Module):
    def __init__(self, d=8, h=48):
        super().__init__()
        self.conv1, self.conv2, self.out = MeanConv(d, h), MeanConv(h, h), nn.Linear(h, 2)
    def forward(self, x, edges, graph, n):
        h = F.leaky_relu(self.conv1(x, *edges), 0.1)
        h = F.leaky_relu(self.conv2(h, *edges), 0.1)
        pooled = torch.zeros(n, h.shape[1]).index_add(0, graph, h) / 10
        return self.out(pooled)

def graphs(n, isolated):
    x, graph = torch.randn(n * 10, 8), torch.arange(n).repeat_interleave(10)
    ring = torch.arange(n * 10)
    nxt = graph * 10 + (ring % 10 + 1) % 10
    src, dst = torch.cat([ring, nxt]), torch.cat([nxt, ring])
    if isolated:
        keep = dst != 14
        src, dst = src[keep], dst[keep]
    y = (x.view(n, 10, 8)[:, :, 0].sum(1) > 0).long()
    return x, (src, dst), graph, y

net = GNN()
opt = torch.optim.Adam(net.parameters(), 3e-3)
rangewatch.attach(net, opt)
for step in range(200):
    x, edges, graph, y = graphs(16, step >= 130)
    loss = F.cross_entropy(net(x, edges, graph, 16), y)
    opt.zero_grad(); loss.backward(); opt.step()
