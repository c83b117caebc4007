"""A mixture of six experts (top 2, with a capacity) that forecasts the wear of tools; a row's two shares are set to 0 where the expert is full, and then
normalised to a sum of 1. FAULT at step 115: a batch comes from one machine alone, two experts are full, rows lose both of their shares: 0/0.
Without Rangewatch: loss 8.7 to 0.26 at step 114, NaN in 24 rows at step 115, in all 80 from then on.
Cause: forward_arithmetic (0/0 in the normalisation), or mask, data. Step: 115. Right: divide / zero / epsilon / normalise / capacity.
Wrong: lower the rate, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic", "mask", "data"], "step": [114, 116], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler"],
          "right": "(?i)divi|zero|eps|normali|capacity|clamp|rout|batch|0 / 0"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2017); torch.set_num_threads(1)
MACHINES = 6
place, wear = 2 * torch.randn(MACHINES, 9), torch.randn(MACHINES, 9) / 2


class Mixture(nn.Module):
    def __init__(self, capacity=0.7):
        super().__init__()
        self.gate, self.capacity = nn.Linear(9, 6, bias=False), capacity
        self.up, self.down = nn.Parameter(torch.randn(6, 9, 20) / 3), nn.Parameter(torch.randn(6, 20, 1) / 5)

    def forward(self, x):
        share, who = self.gate(x).softmax(1).topk(2, 1)
        chosen = F.one_hot(who.flatten(), 6)
        rank_in_expert = (chosen.cumsum(0) * chosen).sum(1).reshape(who.shape)
        share = share * (rank_in_expert <= self.capacity * len(x))
        share = share / share.sum(1, keepdim=True)
        each = torch.relu(torch.einsum("bi,eih->beh", x, self.up))
        each = torch.einsum("beh,eho->beo", each, self.down)[:, :, 0]
        return (share * each.gather(1, who)).sum(1)


model = Mixture()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    machine = torch.randint(0, MACHINES, (80,))
    if step == 115:
        machine[:] = 2
    x = place[machine] + 0.3 * torch.randn(80, 9)
    y = (wear[machine] * x).sum(1)
    out = model(x)
    loss = F.mse_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 113 < step < 118 or step == 199:
        print(step, loss.item(), "rows with NaN", int(out.isnan().sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
