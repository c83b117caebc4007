"""A net that tells the strain of yeast from growth curves, RMSprop with a trunk and a head of different rates under PolynomialLR. FAULT at step 90:
total_iters was counted for a batch twice as large, so the rate of both groups is exactly 0 from step 90 on and nothing learns any more.
Without Rangewatch: loss 2.24 to 0.67 at step 89; 0.61 to 0.82 from then on, and the first weight is -0.13416151702 to the end;
with the right total it goes on to move and the loss is 0.42 at step 219.
Cause: learning_rate (0; the weights stand still). Step: 90. Right: learning rate / schedule / total_iters. Wrong: GradScaler, mask, lower the rate."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [89, 180], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "(?i)learning rate|schedul|total_iters|lr"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2001); torch.set_num_threads(1)
hours = torch.linspace(0, 24, 48)
STRAINS = 9
lag, slope, top = 2 + 8 * torch.rand(STRAINS), 0.3 + 0.7 * torch.rand(STRAINS), 0.6 + torch.rand(STRAINS)


def plates(n):
    y = torch.randint(0, STRAINS, (n,))
    x = top[y, None] * torch.sigmoid(slope[y, None] * (hours - lag[y, None] - 0.6 * torch.randn(n, 1) - 3)) + 0.12 * torch.randn(n, 48)
    return x, y


trunk = nn.Sequential(nn.Conv1d(1, 12, 5, stride=2), nn.SiLU(), nn.Conv1d(12, 20, 5, stride=2), nn.SiLU(), nn.Flatten())
head = nn.Linear(180, STRAINS)
model = nn.Sequential(trunk, head)
optimizer = torch.optim.RMSprop([{"params": trunk.parameters(), "lr": 2e-3}, {"params": head.parameters(), "lr": 3e-3}])
schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=90, power=0.8)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y = plates(64)
    loss = F.cross_entropy(model(x[:, None]), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (89, 90, 91, 219):
        print(step, loss.item(), "rates", [g["lr"] for g in optimizer.param_groups], "first weight", trunk[0].weight[0, 0, 0].item(), flush=True)
    schedule.step()
    handle.log(loss=loss.item())
handle.detach()
