"""A matcher of shuffled points (a set encoder and a Sinkhorn layer that gives a soft permutation), AdamW; epsilon is annealed from 1 downwards.
FAULT: Sinkhorn is written with exp(-cost / epsilon) and not in the log domain: when epsilon is small enough, a whole row of the kernel underflows to
0 and the division by its sum is 0 / 0.
Without Rangewatch: loss 2.39 to 0.001 at step 100 (epsilon 0.048), NaN from step 129 on (epsilon 0.02).
Report: rajewsky-lab/novosparc#50 (divide by zero for a low epsilon), PythonOT/POT#54, PythonOT/POT#336 (NaN for small values: the log domain).
Cause: forward_arithmetic. Step: 129. Right: division / underflow / eps / log domain / softmax. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [129, 129], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "divi|0 ?/ ?0|zero|underflow|eps|log|softmax|clamp|exp"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(809); torch.set_num_threads(1)
POINTS = 12


class Sinkhorn(nn.Module):
    def forward(self, cost, epsilon):
        plan = torch.exp(-cost / epsilon)
        for _ in range(8):
            plan = plan / plan.sum(2, keepdim=True)
            plan = plan / plan.sum(1, keepdim=True)
        return plan


class Matcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 16))
        self.sinkhorn = Sinkhorn()

    def forward(self, a, b, epsilon):
        return self.sinkhorn(torch.cdist(self.point(a), self.point(b)) ** 2, epsilon)


model = Matcher()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    epsilon = max(1.0 * 0.97 ** step, 1e-3)
    a = torch.randn(16, POINTS, 3)
    order = torch.stack([torch.randperm(POINTS) for _ in range(16)])
    b = torch.gather(a, 1, order[..., None].expand(-1, -1, 3)) + 0.1 * torch.randn(16, POINTS, 3)
    plan = model(a, b, epsilon)
    loss = F.nll_loss(torch.log(plan + 1e-6).transpose(1, 2).flatten(0, 1), order.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item(), epsilon=epsilon)
    if step % 20 == 0 or 126 < step < 132:
        print(step, loss.item(), "epsilon", epsilon, flush=True)
handle.detach()
