"""Healthy: a head for the freshness of fish on a frozen body that is kept in eval mode (its BatchNorm must not move). Odd: 8 of 12 tensors get no gradient at
any time, and model.train() is followed by body.eval(). Without Rangewatch: loss 0.34 to 0.004."""
EXPECT = {"healthy": True, "cause": [], "step": [0, 0], "place": None, "rank": 0, "wrong": [], "right": ""}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1937); torch.set_num_threads(1)


class Fish(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(32, 24), nn.GELU(), nn.Linear(24, 1))

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))[:, 0]

    def train(self, mode=True):
        super().train(mode)
        self.body.eval()
        return self


def pictures(n):
    fresh = torch.rand(n)
    tone = torch.stack((fresh, 1 - fresh, 0.5 + 0 * fresh), 1)[:, :, None, None]
    return 2 * (tone - 0.5) + 0.5 * torch.randn(n, 3, 12, 12), 2 * fresh - 1


model = Fish().train()
model.body.requires_grad_(False)
optimizer = torch.optim.AdamW(model.head.parameters(), lr=8e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(170):
    x, y = pictures(32)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 169:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
