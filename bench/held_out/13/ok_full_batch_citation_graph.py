"""A graph net over one citation graph, trained as such nets are: the whole graph is the batch, the very same at every step, with dropout, and only the
labels of 60 papers count. HEALTHY.
Without Rangewatch: loss 1.41 to 0.051 at step 40 and 0.009 at the end; all other papers right from step 80 on."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1341); torch.set_num_threads(1)
PAPERS, FIELDS, WORDS = 240, 4, 60
field = torch.randint(0, FIELDS, (PAPERS,))
cites = torch.rand(PAPERS, PAPERS) < torch.where(field[:, None] == field, 0.06, 0.006)
graph = (cites | cites.T).float() + torch.eye(PAPERS)
graph = graph / graph.sum(1, keepdim=True)
words = (torch.rand(PAPERS, WORDS) < (torch.rand(FIELDS, WORDS) ** 3)[field]).float()
known = torch.zeros(PAPERS, dtype=torch.bool)
known[torch.randperm(PAPERS)[:60]] = True


class Citations(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WORDS, 24), nn.Linear(24, FIELDS)

    def forward(self, x):
        h = F.relu(graph @ self.first(F.dropout(x, 0.5, self.training)))
        return graph @ self.second(F.dropout(h, 0.5, self.training))


model = Citations()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    loss = F.cross_entropy(model(words)[known], field[known])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 219:
        model.eval()
        with torch.no_grad():
            right = (model(words).argmax(1) == field)[~known].float().mean().item()
        model.train()
        print(step, loss.item(), "right", right, flush=True)
    handle.log(loss=loss.item())
handle.detach()
