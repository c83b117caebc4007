"""A small U-shaped conv net that segments discs on a noisy ground. FAULT from step 90 on: the polynomial schedule was given the number of batches of one device
where the run has two and a half times as many: from step 90 on the rate of both groups is 0, and the last 130 steps teach nothing.
Without Rangewatch: loss 0.71 to 0.38 at step 90 and 0.38 to 0.39 to the end; with a schedule of 220 it is 0.23 at the end.
Cause: learning_rate. Step: 90 to the end, a state. Right: learning rate is 0 / schedule / total steps. Wrong: GradScaler, attention mask, dead units, lower the rate."""
EXPECT = {"cause": ["learning_rate"], "step": [88, 219], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|schedul", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2403); torch.set_num_threads(1)
grid = torch.stack(torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij"))


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.SiLU())
        self.deep = nn.Conv2d(32, 32, 3, padding=1)
        self.up = nn.ConvTranspose2d(32, 16, 4, 2, 1)
        self.mark = nn.Conv2d(17, 1, 3, padding=1)

    def forward(self, x):
        h = self.down(x)
        return self.mark(torch.cat((F.silu(self.up(h + F.silu(self.deep(h)))), x), 1))


def discs(n):
    c, r = 24 * torch.rand(n, 2, 1, 1), 3 + 5 * torch.rand(n, 1, 1)
    mark = (((grid[None] - c) ** 2).sum(1).sqrt() < r).float()[:, None]
    return mark * 0.8 + 0.6 * torch.randn(n, 1, 24, 24), mark


model = Segmenter()
optimizer = torch.optim.SGD([{"params": model.down.parameters(), "lr": 0.004},
                             {"params": [p for m in (model.deep, model.up, model.mark) for p in m.parameters()], "lr": 0.008}], momentum=0.9)
schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=90, power=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    picture, mark = discs(16)
    loss = F.binary_cross_entropy_with_logits(model(picture), mark)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 86 < step < 93 or step == 219:
        print(step, loss.item(), "rates", [g["lr"] for g in optimizer.param_groups], flush=True)
    schedule.step()
    handle.log(loss=loss.item())
handle.detach()
