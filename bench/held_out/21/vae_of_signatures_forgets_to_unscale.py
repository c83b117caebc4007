"""A VAE of pen strokes; the author scales the loss by 1e8 by hand against underflow (a habit from another machine) and divides the gradients by it before the step. FAULT at step 140:
a branch for "the last batch of a file" forgets the division once. Adam bounds that update, but its second moment is 1e16 times as large from then on, and the net stands still.
Without Rangewatch: loss 405 to 55 at step 140; gradient norm 129 at step 139, 7.8e9 at step 140, 142 at step 141; the loss rises to 120 at step 160 (momentum of the one
update) and stays at 130 to 146, the update of a weight matrix falls from 9e-3 to 3e-6.
Cause: loss_scale, optimizer (the second moment), clip (there is none) or backward_arithmetic; data is fair at a first sight. Step: 140. Right: gradient norm / clip / unscale / scale /
Adam. Wrong: GradScaler's initial scale, mask."""
EXPECT = {"cause": ["loss_scale", "optimizer", "clip", "backward_arithmetic", "data"], "step": [139, 142], "place": None, "rank": 0,
          "right": "(?i)gradient|clip|scale|optimi[sz]er|moment|batch", "wrong": ["initial scale", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2126)
torch.set_num_threads(1)
SCALE = 1e8


class Strokes(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(40, 100), nn.Softplus(), nn.Linear(100, 16))
        self.decode = nn.Sequential(nn.Linear(8, 100), nn.Softplus(), nn.Linear(100, 40))

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, 1)
        z = mean + (log_var / 2).exp() * torch.randn_like(mean)
        kl = 0.5 * (mean ** 2 + log_var.exp() - log_var - 1).sum(1)
        return ((self.decode(z) - x) ** 2).sum(1) / 0.1 + kl


def strokes(n):
    t = torch.linspace(0, 6.28, 20)
    a, b, c = torch.rand(3, n, 1)
    return torch.cat((torch.cos((1 + a) * t) * (1 + b), torch.sin((1 + c) * t) + a), 1)


model = Strokes()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x = strokes(32)
    loss = model(x).mean()
    optimizer.zero_grad()
    (loss * SCALE).backward()
    end_of_file = step == 140
    if not end_of_file:
        for p in model.parameters():
            p.grad.div_(SCALE)
    before = model.decode[2].weight.detach().clone()
    optimizer.step()
    if step % 20 == 0 or 138 < step < 143 or step == 259:
        print(step, loss.item(), "norm", torch.stack([p.grad.norm() for p in model.parameters()]).norm().item(), "update", (model.decode[2].weight - before).norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
