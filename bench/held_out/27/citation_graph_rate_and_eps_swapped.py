"""A graph net that sorts the papers of a citation graph (RMSprop). FAULT from the start: lr and eps have changed places in the settings: the rate is 1e-8 and
eps 0.002; the weights do not move.
Without Rangewatch: loss 1.66 to 1.68 at every step (log 5 is 1.61); in 180 steps no weight moves by more than 3.1e-6. With them in place: 0.006.
Cause: learning_rate, optimizer or eps. Step: any. Right: learning rate / too small. Wrong: GradScaler, attention mask, lower the learning rate."""
EXPECT = {"cause": ["learning_rate", "optimizer", "eps"], "step": [0, 180], "place": None, "rank": None,
          "right": "(?i)learning rate|\\blr\\b|too small|step size|update|1e-0?8", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2721); torch.set_num_threads(1)
PAPERS, FIELDS = 300, 5
SETTINGS = dict(lr=1e-8, alpha=0.99, eps=2e-3)

field = torch.randint(0, FIELDS, (PAPERS,))
same = (field[:, None] == field[None]).float()
cites = (torch.rand(PAPERS, PAPERS) < 0.004 + 0.03 * same).float()
adjacency = ((cites + cites.T) > 0).float() + torch.eye(PAPERS)
rate = adjacency.sum(1).rsqrt()
adjacency = rate[:, None] * adjacency * rate
words = F.one_hot(field, FIELDS).float() @ torch.randn(FIELDS, 48) + 3 * torch.randn(PAPERS, 48)
known = torch.rand(PAPERS) < 0.5


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(48, 32), nn.Linear(32, FIELDS)

    def forward(self, adjacency, x):
        h = F.leaky_relu(adjacency @ self.first(x), 0.1)
        return adjacency @ self.second(F.dropout(h, 0.2, self.training))


net = Graph()
optimizer = torch.optim.RMSprop(net.parameters(), **SETTINGS)
handle = rangewatch.attach(net, optimizer)
start = net.first.weight.detach().clone()
for step in range(180):
    out = net(adjacency, words)
    loss = F.cross_entropy(out[known], field[known])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), "moved by", (net.first.weight - start).abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
