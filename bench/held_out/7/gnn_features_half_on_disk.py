"""A graph net for papers whose features (an embedding and counts) were written as float16 to save disk. FAULT from step 150 on: the second shard
holds papers with more than 65504 citations, stored as inf; the input normalisation makes NaN of inf - inf, and all weights follow.
Without Rangewatch: loss 2.12 to 0.06 at step 149, NaN at step 150 (54 features are inf) and ever after.
Report: hearbenchmark/hear-eval-kit#349 (don't allow NaN or inf embeddings), KevinMusgrave/pytorch-metric-learning#530 (a value too large),
MinishLab/model2vec#368 (float16 embeddings overflow).
Cause: data (or forward_arithmetic). Step: 150. Right: input / features / data / batch / inf / log. Wrong: learning rate, GradScaler's scale, mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [150, 151], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "init_scale"],
          "right": "input|feature|data|batch|inf|normali|clamp|log|float32"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(711); torch.set_num_threads(1)
FIELDS = 8
topic = torch.randn(FIELDS, 20)


def shard(citations):
    y = torch.randint(0, FIELDS, (64,))
    counts = (torch.exp(torch.randn(64, 2)) * citations)
    x = torch.cat([topic[y] + 1.5 * torch.randn(64, 20), counts], 1).half()  # what is on the disk
    same = (y[:, None] == y[None]).float() * 0.25 + 0.01
    adjacency = (torch.rand(64, 64) < same).float()
    adjacency = ((adjacency + adjacency.T) > 0).float().fill_diagonal_(1)
    return x.float(), adjacency / adjacency.sum(1, keepdim=True), y


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(22)
        self.first = nn.Linear(22, 48)
        self.second = nn.Linear(48, FIELDS)

    def forward(self, x, adjacency):
        h = F.relu(adjacency @ self.first(self.norm(x)))
        return adjacency @ self.second(h)


model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, adjacency, y = shard(300.0 if step < 150 else 60000.0)
    loss = F.cross_entropy(model(x, adjacency), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or 148 < step < 153:
        print(step, loss.item(), x.isinf().sum().item(), flush=True)
handle.detach()
