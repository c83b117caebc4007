"""GraphSAGE with mean aggregation over sampled subgraphs, node classification. FAULT: the sum over neighbours is divided by the degree, and at step
110 (the crawl of a new day) the first subgraph with a node without neighbours comes: 0 / 0. Without Rangewatch: loss 1.65 to 0.001 at step 109, NaN
from step 110 on.
Report: MrLeeeee/GCN-GAT-and-Graphsage#3 (h1 / degree, the degree of some nodes is zero, the loss becomes NaN), dmlc/dgl#2777.
Cause: arithmetic of the forward in the first layer. Right: clamp the degree / eps / self loops. Wrong: learning rate, precision, mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [109, 111], "place": "layers\\.0.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "bfloat16", "GradScaler", "loss scale"],
          "right": "eps|divi|0 ?/ ?0|clamp|degree|zero|input"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(13); torch.set_num_threads(1)
NODES, CLASSES = 600, 5
label = torch.randint(0, CLASSES, (NODES,))
feature = F.one_hot(label, CLASSES).float() @ torch.randn(CLASSES, 24) + 2.0 * torch.randn(NODES, 24)
same = label[:, None] == label[None]
edges = (torch.rand(NODES, NODES) < torch.where(same, 0.4, 0.03)).float().triu(1)
edges = edges + edges.t()


class Sage(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.own, self.neighbours = nn.Linear(i, o), nn.Linear(i, o, bias=False)

    def forward(self, x, adjacency):
        mean = adjacency @ x / adjacency.sum(1, keepdim=True)
        return self.own(x) + self.neighbours(mean)


class Net(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.layers = nn.ModuleList([Sage(24, d), Sage(d, d)])
        self.head = nn.Linear(d, CLASSES)

    def forward(self, x, adjacency):
        for layer in self.layers:
            x = F.dropout(layer(x, adjacency).relu(), 0.2, self.training)
        return self.head(x)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    rows = torch.randperm(NODES)[:200]
    adjacency = edges[rows][:, rows].clone()
    if step == 110:
        adjacency[17], adjacency[:, 17] = 0, 0
    assert step == 110 or adjacency.sum(1).min() > 0
    loss = F.cross_entropy(model(feature[rows], adjacency), label[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 15 == 0 or 108 <= step < 113:
        print(step, round(loss.item(), 4))
