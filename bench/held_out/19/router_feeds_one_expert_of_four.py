"""A hand-written mixture of four experts (top 1, a loop over the experts with the rows each of them gets) that translates sensor codes. FAULT at step 105:
the term of balance, weighed by 0.02 so far, enters with -2 (a new tuner of weights took it for a reward): the router is paid for being unfair, and within
some tens of steps one expert gets every row and three get none.
Without Rangewatch: loss 0.59 to 0.16 at step 104, with rows of 21, 27, 19 and 29; 12, 9, 10 and 65 at step 120; 0, 0, 0 and 96 from step 140 to the end.
Cause: dead_units (experts without rows), regularization or no_gradient. Step: 105 to 165. Right: router / expert / balance. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["dead_units", "regularization", "no_gradient"], "step": [104, 165], "place": None, "rank": 0,
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)bfloat16"],
          "right": "(?i)router|expert|balanc|gate|load"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1930); torch.set_num_threads(1)
EXPERTS, CODES = 4, 16


class Mixture(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.code = nn.Embedding(CODES, width)
        self.enter = nn.Linear(6, width)
        self.router = nn.Linear(width, EXPERTS)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)) for _ in range(EXPERTS))
        self.out = nn.Linear(width, 3)

    def forward(self, code, value):
        h = torch.tanh(self.code(code) + self.enter(value))
        share = self.router(h).softmax(1)
        best, chosen = share.max(1)
        total = h.clone()
        rows = []
        for i, expert in enumerate(self.experts):
            own = (chosen == i).nonzero()[:, 0]
            rows.append(len(own))
            if len(own):
                total[own] = total[own] + best[own, None] * expert(h[own])
        balance = EXPERTS * (share.mean(0) * F.one_hot(chosen, EXPERTS).float().mean(0)).sum()
        return self.out(total), balance, rows


maps = torch.randn(CODES, 6, 3)


def codes(n):
    code, value = torch.randint(0, CODES, (n,)), torch.randn(n, 6)
    return code, value, torch.tanh(torch.einsum("ni,nij->nj", value, maps[code]) / 2)


model = Mixture()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(210):
    code, value, y = codes(96)
    given, balance, rows = model(code, value)
    loss = F.mse_loss(given, y) + (0.02 if step < 105 else -2.0) * balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 103 < step < 112 or step == 209:
        print(step, loss.item(), "rows", rows, flush=True)
    handle.log(loss=loss.item())
handle.detach()
