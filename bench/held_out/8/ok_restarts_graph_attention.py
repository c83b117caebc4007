"""A graph attention net for nodes of a stochastic block model, AdamW, cosine with warm restarts every 50 steps down to a rate of exactly 0 and up
to 0.02 again: small bumps of the loss at each restart. Dropout of attention, isolated nodes with a loop of their own. HEALTHY.
Without Rangewatch: loss 1.5 to 0.15 at step 90 and 0.1 at the end, with bumps (0.27 at step 210) after restarts."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(831); torch.set_num_threads(1)
GROUPS, NODES = 4, 160
group = torch.randint(0, GROUPS, (NODES,))
edges = torch.rand(NODES, NODES) < torch.where(group[:, None] == group[None], 0.08, 0.01)
edges = edges | edges.T
edges[:5] = False
edges[:, :5] = False
edges = edges | torch.eye(NODES, dtype=torch.bool)
features = torch.randn(GROUPS, 12)[group] + 2.0 * torch.randn(NODES, 12)


class Attend(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.lin, self.a, self.b = nn.Linear(inside, outside), nn.Linear(outside, 1), nn.Linear(outside, 1)

    def forward(self, x):
        h = self.lin(x)
        scores = F.leaky_relu(self.a(h) + self.b(h).T, 0.2).masked_fill(~edges, float("-inf"))
        return F.dropout(scores.softmax(1), 0.2, self.training) @ h


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Attend(12, 32), Attend(32, GROUPS)

    def forward(self, x):
        return self.two(F.elu(self.one(F.dropout(x, 0.1, self.training))))


model = GAT()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=5e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 50, eta_min=0.0)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    x = features + 0.3 * torch.randn(NODES, 12)
    loss = F.cross_entropy(model(x), group)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    handle.log(loss=loss.item())
    if step % 10 == 0:
        print(step, loss.item(), optimizer.param_groups[0]["lr"], flush=True)
handle.detach()
