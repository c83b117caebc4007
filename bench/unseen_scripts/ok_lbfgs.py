"""HEALTHY: LBFGS with a closure and strong Wolfe on a small regression, 400 steps; it converges to next to no gradient."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
opt = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=4, history_size=10, line_search_fn="strong_wolfe")
rangewatch.attach(net, opt)
x = 2 * torch.rand(256, 2) - 1
y = torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:])
def closure():
    opt.zero_grad()
    loss = (net(x) - y).pow(2).mean() + 1e-6 * sum(p.pow(2).sum() for p in net.parameters())
    loss.backward()
    return loss
for epoch in range(400):
    opt.step(closure)
