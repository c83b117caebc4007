"""A fully convolutional net that draws the density of cells under a microscope. FAULT from the start: the rate warms up from a ten-thousandth (LinearLR), and
nobody calls the scheduler's step(): the rate stays at 1e-7 for all of the training.
Without Rangewatch: loss 0.146 at step 0, 0.162 at the end, no better than at the start; with scheduler.step() it is 0.022 at the end.
Variant of: schedules: scheduler_of_a_warm_up_is_never_moved.
Cause: learning_rate (the weights hardly move). Step: 0 on. Right: learning rate / scheduler / warm-up / raise / step(). Wrong: lower the rate, GradScaler."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 200], "place": None, "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "[Cc]lip the grad"],
          "right": "[Ll]earning rate|schedul|warm|rais|\\blr\\b"}
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LinearLR
import rangewatch

torch.manual_seed(1127); torch.set_num_threads(1)
blob = torch.exp(-(torch.arange(-2.0, 3)[:, None] ** 2 + torch.arange(-2.0, 3) ** 2) / 2)[None, None]


class CellNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.density = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        return self.density(self.body(x))


def fields(n):
    cells = (torch.rand(n, 1, 20, 20) < 0.02).float()
    return F.conv2d(cells, blob, padding=2) + 0.3 * torch.randn(n, 1, 20, 20), F.conv2d(cells, blob / blob.sum(), padding=2) * 10


model = CellNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = LinearLR(optimizer, start_factor=1e-4, total_iters=40)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, density = fields(12)
    loss = F.mse_loss(model(x), density)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
