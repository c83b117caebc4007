"""Embeddings of a tree in the Poincare ball, plain SGD, the distance by acosh. FAULT: nothing keeps the points inside of the ball. At step 198 one of them
is moved to a norm of 1.004; 1 - |u|^2 is negative, the argument of acosh below 1, the distance NaN, and so is all.
Without Rangewatch: loss 2.40 to 1.54 at step 198, NaN at step 199 and ever after; largest norm 0.06, 0.69 at step 100, 0.97 at step 197, 1.004.
Report: facebookresearch/poincare-embeddings#41 (the norm is clipped to 1 - 1e-5), facebookresearch/poincare-embeddings#86 (the projection into the ball),
SauersML/gam#354 (points on the boundary).
Cause: forward_arithmetic. Step: 199. Right: acosh / domain / clamp / norm / eps. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [120, 320], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "acosh|arcosh|domain|divi|clamp|eps|zero|norm|loss|sqrt|log"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(807); torch.set_num_threads(1)
NODES, DEPTH = 127, 7
parent = [(i - 1) // 2 for i in range(NODES)]
ancestor = torch.zeros(NODES, NODES)
for i in range(NODES):
    j = i
    while j > 0:
        j = parent[j]
        ancestor[i, j] = ancestor[j, i] = 1
pairs = ancestor.triu().nonzero()


class PoincareEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Embedding(NODES, 5)
        nn.init.uniform_(self.place.weight, -1e-2, 1e-2)

    def forward(self, left, right):
        u, v = self.place(left), self.place(right)
        square = ((u - v) ** 2).sum(-1)
        argument = 1 + 2 * square / ((1 - (u ** 2).sum(-1)) * (1 - (v ** 2).sum(-1)))  # the projection into the ball was forgotten
        return torch.acosh(argument + 1e-5)


model = PoincareEmbedding()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
handle = rangewatch.attach(model, optimizer)
for step in range(350):
    pick = pairs[torch.randint(0, len(pairs), (64,))]
    others = torch.randint(0, NODES, (64, 10))
    candidates = torch.cat([pick[:, 1:], others], 1)
    distance = model(pick[:, :1].expand_as(candidates), candidates)
    loss = F.cross_entropy(-distance, torch.zeros(64).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    norm = model.place.weight.detach().norm(dim=1).max().item()
    if step % 20 == 0 or step == 349 or norm > 1 or 196 < step < 202:
        print(step, loss.item(), "largest norm", norm, flush=True)
    handle.log(loss=loss.item())
handle.detach()
