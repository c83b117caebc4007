"""A small graph net (dense adjacency, two rounds of messages) says a molecule's weight-like target, SmoothL1, Adamax. The first file gives targets as [n, 1], like the predictions. FAULT at step 120: the second file gives them as [n]:
the loss broadcasts [40, 1] against [40] to [40, 40], each prediction is drawn to the mean of the batch.
Without Rangewatch: loss 1.64 to 0.08 at step 119, 2.3 at 120, 1.5 to 3.1 to the end; the spread of the predictions falls from 3.06 to 0.29.
Cause: forward_arithmetic (wrong broadcasting). Step: 120. Right: shape / broadcast / squeeze. Wrong: GradScaler, attention mask, lower the learning rate."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [119, 125], "place": None, "rank": None,
          "right": "(?i)broadcast|shape|squeeze|view|unsqueeze|\\[40", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(115); torch.set_num_threads(1)
kinds = torch.tensor([1.2, 1.4, 1.6, 0.1, 3.2])


class Graph(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.atom = nn.Embedding(5, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.near = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.read = nn.Linear(width, 1)

    def forward(self, atoms, links):
        h = self.atom(atoms)
        for own, near in zip(self.own, self.near):
            h = h + torch.relu(own(h) + near(links @ h / links.sum(-1, keepdim=True).clamp(min=1)))
        return self.read(h.sum(1) / 4)


net = Graph()
optimizer = torch.optim.Adamax(net.parameters(), lr=4e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(240):
    atoms = torch.randint(0, 5, (40, 9))
    links = (torch.rand(40, 9, 9) < 0.3).float().triu(1)
    links = links + links.transpose(1, 2)
    y = kinds[atoms].sum(1, keepdim=True) - 13.5 + 0.1 * links.sum((1, 2))[:, None] - 2.0
    if step >= 120:
        y = y.flatten()
    out = net(atoms, links)
    d = (out - y).abs()
    loss = torch.where(d < 1, 0.5 * d * d, d - 0.5).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (119, 121, 239):
        print(step, loss.item(), "spread of predictions", out.std().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
