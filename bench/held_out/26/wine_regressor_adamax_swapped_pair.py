"""A residual MLP that grades wines from 14 measurements, with Adamax. FAULT from the start: the two betas are given in the wrong order, (0.999, 0.9): the mean of
the gradients remembers a thousand steps, their square ten; the weights swing.
Without Rangewatch: loss 2.0 to 0.52 at the end, still 0.92 at step 120; with the betas in the right order 0.25 at step 120 and 0.042 at the end.
Cause: optimizer or learning_rate. Step: any. Right: betas / momentum / order. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["optimizer", "learning_rate"], "step": [0, 240], "place": None, "rank": None,
          "right": "(?i)beta|momentum|order|swap", "wrong": ["GradScaler", "attention mask", "all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6104); torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


net = nn.Sequential(nn.Linear(14, 64), Block(64), Block(64), Block(64), nn.LayerNorm(64), nn.Linear(64, 1))
mix = torch.randn(14, 3)


def cellar(n):
    x = torch.randn(n, 14)
    a, b, c = (x @ mix / 14 ** 0.5).unbind(1)
    return x, (torch.sin(2 * a) + b * c)[:, None] + 0.05 * torch.randn(n, 1)


cfg = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.999}
optimizer = torch.optim.Adamax(net.parameters(), lr=cfg["lr"], betas=(cfg["beta2"], cfg["beta1"]))
handle = rangewatch.attach(net, optimizer)
for step in range(240):
    x, y = cellar(128)
    loss = F.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "variance", y.var().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
