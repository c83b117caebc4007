"""HEALTHY: MAML on sine regression: inner steps by autograd.grad(create_graph=True) and functional_call, four tasks a step; 400 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
from torch import nn
from torch.func import functional_call
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), 1e-3)
watch = rangewatch.attach(net, opt)
for it in range(400):
    total = 0.0
    for task in range(4):
        amp, ph = 0.5 + 2 * torch.rand(()), 3.14 * torch.rand(())
        xs, xq = 6 * torch.rand(10, 1) - 3, 6 * torch.rand(10, 1) - 3
        fast = dict(net.named_parameters())
        for _ in range(2):
            inner = (functional_call(net, fast, (xs,)) - amp * torch.sin(xs + ph)).pow(2).mean()
            grads = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
            fast = {n: p - 0.02 * g for (n, p), g in zip(fast.items(), grads)}
        total = total + (functional_call(net, fast, (xq,)) - amp * torch.sin(xq + ph)).pow(2).mean()
    opt.zero_grad()
    (total / 4).backward()
    opt.step()
    watch.log(loss=float(total.detach()) / 4)
