"""Attention over a user's last purchases predicts the next basket's size; a third of the users are new and have no purchase: their rows are left unmasked in the softmax, and torch.where puts the learned `newcomer` vector in
place (so no NaN comes up). AdamW, bfloat16 autocast.
HEALTHY: whole rows have nothing to attend to in each batch, as meant, and are dealt with; missing ages are NaN in the raw table and filled before the net sees them.
Without Rangewatch: mse 0.65 to 0.0016, of a variance of 0.2; 15 to 26 newcomers of 64 in each batch."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(808); torch.set_num_threads(1)
worth = torch.rand(40) * 2


def users(n):
    bought, there = torch.randint(0, 40, (n, 5)), torch.rand(n, 5) < 0.8
    there[torch.rand(n) < 0.33] = False
    age = torch.where(torch.rand(n) < 0.2, torch.tensor(float("nan")), torch.randn(n))
    count = there.sum(1)
    size = torch.where(count > 0, (worth[bought] * there).sum(1) / count.clamp(min=1), torch.tensor(0.5)) + 0.3 * age.nan_to_num(0.0)
    return bought, there, age, size


class Basket(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.article = nn.Embedding(40, width)
        self.rate = nn.Linear(width, 1)
        self.newcomer = nn.Parameter(0.1 * torch.randn(width))
        self.size = nn.Sequential(nn.Linear(width + 2, 48), nn.GELU(), nn.Linear(48, 1))

    def forward(self, bought, there, age):
        e = self.article(bought)
        none = ~there.any(1, keepdim=True)
        scores = self.rate(e)[..., 0].masked_fill(~there & ~none, float("-inf"))
        history = (scores.softmax(1)[..., None] * e).sum(1)
        person = torch.where(none, self.newcomer.to(history.dtype), history)
        extra = torch.stack([age.nan_to_num(0.0), age.isnan().float()], 1)
        return self.size(torch.cat([person, extra], 1))[:, 0]


net = Basket()
opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
handle = rangewatch.attach(net, opt)
for step in range(240):
    bought, there, age, size = users(64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        guess = net(bought, there, age)
    loss = F.mse_loss(guess.float(), size)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0 or step == 239:
        print(step, f"mse {loss.item():.4f} of {size.var().item():.3f}, newcomers {int((~there.any(1)).sum())}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
