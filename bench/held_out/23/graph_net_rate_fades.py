"""A graph net that names the part of each node of a network (two rounds of messages). FAULT from step 0 on: ExponentialLR with gamma 0.85 is meant for once
an epoch (25 steps), but schedule.step() stands in the loop over the steps: the rate is below a thousandth of its start from step 43 on and nothing moves.
Without Rangewatch: loss 1.63 to 1.27 at step 37, 1.25 to 1.33 from there to the end; once an epoch it is 0.36 to 0.54 at the end.
Causes: learning_rate (falls to nothing). Right: learning rate / schedule. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["learning_rate"], "step": [10, 229], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|schedul", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2332); torch.set_num_threads(1)
NODES, PARTS = 60, 5


class Messages(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.own, self.near = nn.Linear(a, b), nn.Linear(a, b, bias=False)

    def forward(self, h, edges):
        return torch.relu(self.own(h) + self.near(edges @ h / edges.sum(-1, keepdim=True).clamp(min=1)))


class PartNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Messages(8, 64), Messages(64, 64)
        self.part = nn.Linear(64, PARTS)

    def forward(self, h, edges):
        return self.part(self.second(self.first(h, edges), edges))


sign = 0.6 * torch.randn(PARTS, 8)


def graphs(n):
    part = torch.randint(0, PARTS, (n, NODES))
    same = part[:, :, None] == part[:, None]
    edges = (torch.rand(n, NODES, NODES) < torch.where(same, 0.4, 0.05)).float()
    edges = torch.maximum(edges, edges.mT)
    return sign[part] + torch.randn(n, NODES, 8), edges, part


model = PartNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.85)
handle = rangewatch.attach(model, optimizer)
for epoch in range(9):
    for batch in range(25):
        h, edges, part = graphs(4)
        loss = nn.functional.cross_entropy(model(h, edges).flatten(0, 1), part.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if batch % 12 == 0:
            print(epoch * 25 + batch, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
        handle.log(loss=loss.item())
handle.detach()
