"""Embeddings of a tree in the Poincare ball: plain SGD on the points, distances by acosh, nobody projects the points back into the ball. FAULT: a
leaf is driven over the boundary, 1 - |u|**2 is negative, the argument of acosh is below 1, and the distance is NaN.
Without Rangewatch: loss 2.2 to 0.86 at step 91, after which a norm is 1.0003; NaN from step 92 on.
Report: geoopt/geoopt#227 (NaN loss of a Poincare distance), facebookresearch/poincare-embeddings#8 and #41 (norms of 1),
leymir/hyperbolic-image-embeddings#13.
Cause: forward_arithmetic. Step: 92. Right: acosh / domain / clamp / project / norm. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [91, 92], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "acosh|domain|clamp|project|norm|eps|log|root|negative|invalid|arithmetic|range"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(808); torch.set_num_threads(1)
NODES = 127  # a binary tree; the parent of i is (i - 1) // 2


class Distance(nn.Module):
    def forward(self, u, v):
        gap = ((u - v) ** 2).sum(-1)
        return torch.acosh(1 + 2 * gap / ((1 - (u ** 2).sum(-1)) * (1 - (v ** 2).sum(-1))) + 1e-7)


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Embedding(NODES, 4)
        nn.init.uniform_(self.points.weight, -1e-2, 1e-2)
        self.distance = Distance()

    def forward(self, child, others):
        return self.distance(self.points(child)[:, None], self.points(others))


model = Tree()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    child = torch.randint(1, NODES, (64,))
    parent = torch.div(child - 1, 2, rounding_mode="floor")
    others = torch.cat([parent[:, None], torch.randint(0, NODES, (64, 8))], 1)
    loss = F.cross_entropy(-model(child, others), torch.zeros(64, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 88 < step < 95:
        print(step, loss.item(), "norms up to", model.points.weight.norm(dim=1).max().item(), flush=True)
handle.detach()
