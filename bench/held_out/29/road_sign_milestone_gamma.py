"""A conv net with ReLUs that sorts road signs, SGD with momentum and a MultiStepLR. FAULT at step 110, the first milestone: gamma is 10 where 0.1 was meant (the
config gave the divisor): the rate goes from 0.05 to 0.5, the loss leaps, most ReLUs die and the weights end as NaN.
Without Rangewatch: loss 2.09 to 0.59 at step 109, 0.80 at 110, 5.1 at 111, 90 at 115, 2e22 at 135, NaN from some step before 150; the share of
zeros behind the last ReLU goes from 0.6 to 0.9.
Cause: learning_rate, dead_units, no_gradient. Step: 110. Right: learning rate / schedule / gamma. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate", "dead_units", "no_gradient"], "step": [109, 125], "place": None, "rank": None,
          "right": "(?i)learning[ _]rate|\\blr\\b|schedul|gamma|milestone|dead|relu", "wrong": ["GradScaler", "attention mask", "all_?reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2919); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
disc = ((xx ** 2 + yy ** 2) < 0.5).float()
square = ((xx.abs() < 0.65) & (yy.abs() < 0.65)).float()
triangle = ((yy > -0.6) & (yy < 0.9 - 2 * xx.abs())).float()
cross = ((xx.abs() < 0.2) | (yy.abs() < 0.2)).float()
signs = torch.stack((disc, square, triangle, cross))
colours = torch.tensor([[1.0, 0.1, 0.1], [0.1, 0.1, 1.0]])


def street(n):
    y, c = torch.randint(0, 4, (n,)), torch.randint(0, 2, (n,))
    x = signs[y][:, None] * colours[c][:, :, None, None]
    return x.roll(tuple(torch.randint(-2, 3, (2,)).tolist()), (2, 3)) + 0.2 * torch.randn(n, 3, 16, 16), y * 2 + c


net = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, 8))
config = {"lr": 0.05, "milestones": [110, 170], "decay": 10}
optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)
schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, config["milestones"], gamma=config["decay"])
handle = rangewatch.attach(net, optimizer)
for step in range(165):
    x, y = street(48)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 15 == 0 or step in (109, 110, 111, 112, 113, 115, 164):
        with torch.no_grad():
            print(step, loss.item(), "share of zeros", (net[:7](x) == 0).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
