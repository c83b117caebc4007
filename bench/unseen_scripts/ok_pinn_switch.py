"""HEALTHY: PINN (heat equation, second derivatives), Adam for 250 steps, then LBFGS made mid-run for 150; loss over 4 decades; 400 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
opt = torch.optim.Adam(net.parameters(), 5e-3)
watch = rangewatch.attach(net, opt)

def total():
    xt = torch.rand(100, 2, requires_grad=True)
    u = net(xt)
    (du,) = torch.autograd.grad(u.sum(), xt, create_graph=True)
    (dxx,) = torch.autograd.grad(du[:, 0].sum(), xt, create_graph=True)
    res = (du[:, 1] - 0.1 * dxx[:, 0]).pow(2).mean()
    x0 = torch.rand(50, 1)
    init = (net(torch.cat([x0, torch.zeros(50, 1)], 1)) - torch.sin(3.14159 * x0)).pow(2).mean()
    t = torch.rand(50, 1)
    edge = net(torch.cat([torch.zeros(50, 1), t], 1)).pow(2).mean() + net(torch.cat([torch.ones(50, 1), t], 1)).pow(2).mean()
    return res + 10 * init + 10 * edge

for step in range(250):
    loss = total()
    opt.zero_grad(); loss.backward(); opt.step()
    watch.log(loss=loss.item())
opt = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
for step in range(150):
    seed = 1234
    def closure():
        torch.manual_seed(seed)
        opt.zero_grad()
        loss = total()
        loss.backward()
        return loss
    watch.log(loss=float(opt.step(closure)))
