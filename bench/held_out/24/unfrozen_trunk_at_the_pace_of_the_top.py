"""Transfer: a conv trunk pretrained on one task before the watch, then frozen under a new top (steps 0 to 129). FAULT at step 130: the trunk is thawed by optimizer.add_param_group without
a rate of its own and so takes the default 0.1 of the SGD of the top, not the 0.002 that was meant; what it had learnt is torn up.
Without Rangewatch: loss 1.84 to 0.06 at step 130, 8.0 at 131, 19 at 132, 2.7 at the end (chance is 1.39); the norm of the trunk goes from 7 to 34.
Cause: learning_rate (or optimizer: the group added). Step: 130. Place: trunk (not required, the top follows). Right: learning rate / group.
Wrong: GradScaler, attention mask, bad batch."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [129, 140], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|group", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2431); torch.set_num_threads(1)


class Transfer(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv1d(1, 24, 7, 2, 3), nn.ReLU(), nn.Conv1d(24, 32, 5, 2, 2), nn.ReLU(), nn.Conv1d(32, 48, 5, 2, 2), nn.ReLU())
        self.even = nn.LayerNorm(48)
        self.old, self.new = nn.Linear(48, 4), nn.Linear(48, 4)

    def forward(self, x, top):
        return top(self.even(self.trunk(x).mean(2)))


axis = torch.arange(64.0)


def waves(n, base):
    k = torch.randint(0, 4, (n,))
    f = (base + 0.15 * k)[:, None]
    return (torch.sin(axis * f + 6.28 * torch.rand(n, 1)) + 0.9 * torch.randn(n, 64))[:, None], k


model = Transfer()
before = torch.optim.Adam([*model.trunk.parameters(), *model.even.parameters(), *model.old.parameters()], lr=3e-3)
for i in range(200):
    x, k = waves(32, 0.3)
    before.zero_grad(); F.cross_entropy(model(x, model.old), k).backward(); before.step()
model.trunk.requires_grad_(False)
model.old.requires_grad_(False)
model.even.requires_grad_(False)
optimizer = torch.optim.SGD(model.new.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(210):
    if step == 130:
        model.trunk.requires_grad_(True)
        optimizer.add_param_group({"params": model.trunk.parameters()})
    x, k = waves(32, 0.4)
    loss = F.cross_entropy(model(x, model.new), k)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or 128 < step < 138 or step == 209:
        print(step, loss.item(), "norm of the trunk", sum(p.norm() ** 2 for p in model.trunk.parameters()).sqrt().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
