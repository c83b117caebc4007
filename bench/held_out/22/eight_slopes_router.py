"""A mixture of eight linear experts, one to each row (switch routing), learns a function that is linear on each of eight regions. The router is kept even
by a bias per expert that is raised where an expert gets few rows. FAULT at step 20: a new setting turns the sign of that bias rule around (and makes it
fast): who has many rows gets more. From then on one or two experts get all rows and the others get none to the end.
Without Rangewatch: rows per expert are 20 to 45 at step 20; at step 25 two experts have all 256 rows, from step 40 on one has all; loss 8.6 at step 20, 14 at step 25, 10.2 to 12.5
to the end (without the fault 1.4 to 3.7).
Causes: no_gradient (experts without rows), dead_units. Right: routing / load balance / experts get no rows. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["no_gradient", "dead_units"], "step": [20, 219], "place": "(experts\\.\\d.*|experts|router.*)", "rank": 0,
          "right": "(?i)rout|expert|balanc|gradient|rows?|unused|gate", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2208); torch.set_num_threads(1)
centres, slopes = 3 * torch.randn(8, 10), torch.randn(8, 10, 12)


class Switch(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(10, 8)
        self.experts = nn.ModuleList(nn.Linear(10, 12) for _ in range(8))
        self.register_buffer("lift", torch.zeros(8))
        self.speed = 0.02

    def forward(self, x):
        share = self.router(x).softmax(1)
        chosen = (share + self.lift).argmax(1)
        out = x.new_zeros(x.shape[0], 12)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero()[:, 0]
            out = out.index_add(0, rows, (1 + share[rows, i, None] - share[rows, i, None].detach()) * expert(x[rows]))
        self.load = torch.bincount(chosen, minlength=8)
        self.lift += self.speed * torch.sign(self.load.float().mean() - self.load)
        return out


model = Switch()
with torch.no_grad():  # the router begins with what a clustering of the rows has found
    model.router.weight.copy_(centres)
    model.router.bias.copy_(-centres.square().sum(1) / 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 20:
        model.speed = -0.5
    region = torch.randint(0, 8, (256,))
    x = centres[region] + torch.randn(256, 10)
    y = torch.einsum("ni,nij->nj", x - centres[region], slopes[region])
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step in (19, 21, 25, 219):
        print(step, loss.item(), model.load.tolist(), flush=True)
handle.detach()
