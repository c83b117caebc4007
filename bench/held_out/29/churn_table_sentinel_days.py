"""An MLP on a customer table (churn). FAULT at step 110: the second month's file writes 99999 for `days since the last call` where it is not known, in three
of a hundred rows; scaled with the first month's mean and deviation it is about 3300.
Without Rangewatch: loss 0.72 to 0.31 at step 109, 91 at 110, 84 at 111, 47 at 115; 0.48 at step 120, 0.34 to 0.49 from there.
Cause: data. Step: 110. Right: input / outlier / feature / range. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [109, 116], "place": None, "rank": None,
          "right": "(?i)input|outlier|feature|range|data|batch|normali[sz]|missing|sentinel|column", "wrong": ["GradScaler", "attention mask", "all_?reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2913); torch.set_num_threads(1)


def month(n, second):
    age, calls = 18 + 60 * torch.rand(n), torch.poisson(torch.full((n,), 3.0))
    days, bill = 90 * torch.rand(n), 20 + 15 * torch.randn(n).abs()
    tenure = 120 * torch.rand(n)
    score = 0.04 * (days - 45) + 0.5 * (calls - 3) - 0.02 * (tenure - 60) + 0.03 * (bill - 32) * (age > 50)
    churn = (torch.rand(n) < torch.sigmoid(2 * score)).float()
    if second:
        days = torch.where(torch.rand(n) < 0.03, torch.tensor(99999.0), days)
    return torch.stack((age, calls, days, bill, tenure), 1), churn


first, _ = month(4096, False)
mean, std = first.mean(0), first.std(0)
net = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    x, y = month(128, step >= 110)
    loss = F.binary_cross_entropy_with_logits(net((x - mean) / std)[:, 0], y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (109, 110, 111, 112, 115, 219):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
