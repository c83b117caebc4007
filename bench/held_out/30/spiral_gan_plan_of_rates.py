"""A GAN that learns points on a spiral, two RMSprop optimizers and a plan of learning rates. FAULT at step 120: the plan says 2e+1 where 2e-4 was meant, for the
critic's optimizer: lr 20.
Without Rangewatch: critic 1.36 and maker 0.74 at step 119; maker 34 at step 120, critic 1.2e6 at step 121, 1.5e9 at 122, 2e7 at the end.
Cause: learning_rate or optimizer. Step: 120. Place: critic. Right: learning rate / schedule. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [119, 124], "place": "critic.*", "rank": None,
          "right": "(?i)learning.rate|\\blr\\b|schedul", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3009); torch.set_num_threads(1)
PLAN = {0: (1e-3, 5e-4), 120: (5e-4, 2e+1), 200: (2e-4, 1e-4)}


def spiral(n):
    a = 9 * torch.rand(n, 1).sqrt()
    return torch.cat((a * torch.cos(a), a * torch.sin(a)), 1) / 9 + 0.03 * torch.randn(n, 2)


net = nn.ModuleDict({
    "maker": nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)),
    "critic": nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))})
make = torch.optim.RMSprop(net["maker"].parameters(), lr=1e-3)
judge = torch.optim.RMSprop(net["critic"].parameters(), lr=5e-4)
handle = rangewatch.attach(net, [make, judge])
for step in range(240):
    if step in PLAN:
        for optimizer, rate in zip((make, judge), PLAN[step]):
            for group in optimizer.param_groups:
                group["lr"] = rate
    real, fake = spiral(128), net["maker"](torch.randn(128, 6))
    loss_judge = F.softplus(-net["critic"](real)).mean() + F.softplus(net["critic"](fake.detach())).mean()
    judge.zero_grad()
    loss_judge.backward()
    judge.step()
    loss_make = F.softplus(-net["critic"](fake)).mean()
    make.zero_grad()
    loss_make.backward()
    make.step()
    if step % 20 == 0 or step in (119, 121, 122, 239):
        print(step, "critic", loss_judge.item(), "maker", loss_make.item(), flush=True)
    handle.log(loss=loss_judge.item() + loss_make.item())
handle.detach()
