"""A recommender's autoencoder completes shopping baskets (multi-hot, 60 goods), RMSprop. The loss is written by hand: y log p + (1 - y) log(1 - p) of a sigmoid, with no eps.
FAULT at step 86: one sigmoid reaches exactly 1 in float32, log(1 - 1) is -inf and 0 * -inf is NaN.
Without Rangewatch: loss 0.69 to 0.039 at step 80, NaN from step 86 on.
Cause: forward_arithmetic. Step: 86. Right: with_logits / clamp / eps / log of zero. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [85, 90], "place": None, "rank": None,
          "right": "(?i)log|clamp|eps|with_?logits|logsigmoid|saturat", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(405); torch.set_num_threads(1)
GOODS = 60
themes = (torch.rand(8, GOODS) < 0.2).float()


def baskets(n):
    t = torch.randint(0, 8, (n,))
    full = themes[t]
    seen = full * (torch.rand(n, GOODS) < 0.6)
    count = seen * (1 + torch.poisson(torch.full((n, GOODS), 1.5)))  # how many of each were bought
    return count, full


class Complete(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(GOODS, 64), nn.ReLU(), nn.Linear(64, 24), nn.ReLU())
        self.dec = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, GOODS))

    def forward(self, x):
        return torch.sigmoid(self.dec(self.enc(x)))


def bce(p, y):
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()


model = Complete()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
broken = False
for step in range(300):
    x, y = baskets(48)
    p = model(x)
    loss = bce(p, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or (not broken and not torch.isfinite(loss)):
        print(step, loss.item(), "largest p", p.max().item(), flush=True)
        broken = not torch.isfinite(loss)
    handle.log(loss=loss.item())
handle.detach()
