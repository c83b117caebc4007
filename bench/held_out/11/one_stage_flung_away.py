"""A graph net of four rounds of messages with a rate for each round, trained by AdamW. FAULT at step 120: a plan of rates by layer has 2.0 for 2e-3 in one
line; the third round is moved too far in that one step, and the loss jumps.
Without Rangewatch: loss 6.3 to 0.28 at step 120; 12.5 at step 121, 1.4 at step 124, 0.25 at step 160; the norm of that round's weights goes
from 2.85 to 6.6 in the one step.
Variant of: spikes: gpt_with_one_layer_moved_too_far.
Cause: learning_rate, weight or optimizer. Step: 120 (in the loss from 121 on). Place: rounds.2. Right: learning rate / param group / step / weights.
Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate", "weight", "optimizer"], "step": [119, 122], "place": ".*rounds\\.2.*", "rank": None,
          "wrong": ["GradScaler", "attention mask"],
          "right": "[Ll]earning rate|\\blr\\b|group|weight|update|step"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1129); torch.set_num_threads(1)
NODES, WIDTH = 12, 24


class Round(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.own, self.others = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, h, near):
        g = self.norm(h)
        return h + F.relu(self.own(g) + near @ self.others(g))


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(5, WIDTH)
        self.rounds = nn.ModuleList(Round() for _ in range(4))
        self.energy = nn.Linear(WIDTH, 1)

    def forward(self, x, near):
        h = self.enter(x)
        for each in self.rounds:
            h = each(h, near)
        return self.energy(h.mean(1))[:, 0]


def molecules(n):
    x = torch.randn(n, NODES, 5)
    near = (torch.rand(n, NODES, NODES) < 0.25).float()
    near = near / near.sum(2, keepdim=True).clamp(min=1)
    return x, near, (torch.relu(x[..., 0]) * (near @ x[..., 1:2])[..., 0] + torch.relu(x[..., 2])).mean(1) * 4


model = GraphNet()
groups = [{"params": model.enter.parameters()}, *({"params": each.parameters()} for each in model.rounds), {"params": model.energy.parameters()}]
optimizer = torch.optim.AdamW(groups, lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    optimizer.param_groups[3]["lr"] = 2.0 if step == 120 else 2e-3
    x, near, y = molecules(48)
    loss = F.mse_loss(model(x, near), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 117 < step < 125:
        print(step, loss.item(), "third round's weights", model.rounds[2].own.weight.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
