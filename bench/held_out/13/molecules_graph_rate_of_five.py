"""A graph net tells which molecules dissolve; messages are sums over bonds. FAULT from step 0: the rate of Adam is 5 (0.005 was meant).
Without Rangewatch: loss 0.69 at step 0, 1.2e7 at 1, 1.0e9 at 3, 0.70 at 60 and 1.85 at the end; at 0.005 it is 0.05.
Variant of: policy_with_lr_5.
Cause: learning_rate. Step: from the start. Right: learning rate. Wrong: GradScaler, attention mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 60], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "learning rate|\\blr\\b"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1321); torch.set_num_threads(1)
ATOMS, KINDS = 9, 5
fond = torch.randn(KINDS)


class Round(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.own, self.from_others = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, h, bond):
        return F.relu(self.own(h) + bond @ self.from_others(h))


class MoleculeNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.atom = nn.Embedding(KINDS, width)
        self.rounds = nn.ModuleList(Round(width) for _ in range(3))
        self.dissolves = nn.Linear(width, 1)

    def forward(self, kind, bond):
        h = self.atom(kind)
        for each in self.rounds:
            h = each(h, bond)
        return self.dissolves(h.mean(1))[:, 0]


def molecules(n):
    kind = torch.randint(0, KINDS, (n, ATOMS))
    upper = (torch.rand(n, ATOMS, ATOMS) < 0.25).float().triu(1)
    bond = upper + upper.transpose(1, 2)
    near = (bond * fond[kind][:, None] * fond[kind][:, :, None]).sum((1, 2))
    return kind, bond, (near + fond[kind].sum(1) > 0).float()


model = MoleculeNet()
optimizer = torch.optim.Adam(model.parameters(), lr=5)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    kind, bond, y = molecules(32)
    loss = F.binary_cross_entropy_with_logits(model(kind, bond), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 4 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
