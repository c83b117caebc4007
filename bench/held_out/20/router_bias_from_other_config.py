"""Five experts, written by hand (a loop over experts, top 1), that forecast the flow of five kinds of rivers. FAULT at step 80: the bias of the router is
loaded from a run with two experts and padded with -1000; experts 2, 3 and 4 get not one row any more.
Without Rangewatch: loss 7.9 to 0.43 at step 79, 5.0 at step 80, 0.36 at the end (0.13 without the fault); rows 18, 27, 15 before and 0, 0, 0
after for the three.
Cause: dead_units (three experts without rows), or no_gradient, weight. Step: 80. Right: expert / router / balance / bias. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["dead_units", "no_gradient", "weight"], "step": [79, 200], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "(?i)expert|rout|balanc|bias|load|row"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2004); torch.set_num_threads(1)
KINDS = 5
centre, matrix = 2.5 * torch.randn(KINDS, 10), torch.randn(KINDS, 10, 3) / 3


class Rivers(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(10, KINDS)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 3)) for _ in range(KINDS))
        with torch.no_grad():
            self.router.weight.copy_(0.2 * centre)
            self.router.bias.copy_(-0.1 * (centre**2).sum(1))

    def forward(self, x):
        gate = self.router(x).softmax(1)
        weight, chosen = gate.max(1)
        out, self.rows = x.new_zeros(x.shape[0], 3), []
        for k, expert in enumerate(self.experts):
            mine = (chosen == k).nonzero()[:, 0]
            self.rows.append(len(mine))
            if len(mine):
                out = out.index_add(0, mine, weight[mine, None] * expert(x[mine]))
        return out


model = Rivers()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 80:
        with torch.no_grad():
            model.router.bias.copy_(F.pad(torch.tensor([0.1, -0.1]), (0, KINDS - 2), value=-1000.0))
    kind = torch.randint(0, KINDS, (100,))
    x = centre[kind] + 0.8 * torch.randn(100, 10)
    y = torch.einsum("bi,bio->bo", x, matrix[kind])
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (79, 81, 219):
        print(step, loss.item(), "rows", model.rows, flush=True)
    handle.log(loss=loss.item())
handle.detach()
