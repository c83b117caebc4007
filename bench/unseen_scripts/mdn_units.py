"""Mixture density network, likelihood without logsumexp. FAULT at step 120: the targets of one batch are in millimetres instead of
metres (x 1000): every component underflows to 0, log(0) = -Inf in the loss. Cause: data (targets), log 0 in the loss as how
(forward_arithmetic accepted), step 120, place: loss. Right: targets of the batch / the log in the loss. Wrong: lr, mask, weights."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [120, 120], "place": r"(loss|\(loss\)|)", "rank": 0,
          "wrong": ["learning rate", "[Mm]ask", "checkpoint", "GradScaler", "bfloat16"], "right": "batch|target|log"}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class MDN(nn.Module):
    def __init__(self, k=5, h=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh())
        self.pi, self.mu, self.log_sigma = nn.Linear(h, k), nn.Linear(h, k), nn.Linear(h, k)
    def forward(self, x):
        h = self.body(x)
        return self.pi(h).softmax(1), self.mu(h), self.log_sigma(h).clamp(-3, 3).exp()

def nll(pi, mu, sigma, y):
    density = torch.exp(-0.5 * ((y - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    return -torch.log((pi * density).sum(1)).mean()

net = MDN()
opt = torch.optim.RMSprop(net.parameters(), 1e-3)
rangewatch.attach(net, opt)
for step in range(200):
    y = 2 * torch.rand(256, 1) - 1
    x = y + 0.3 * torch.sin(2 * math.pi * y) + 0.05 * torch.randn_like(y)
    if step == 120:
        y = y * 1000
    pi, mu, sigma = net(x)
    loss = nll(pi, mu, sigma, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
