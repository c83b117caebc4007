"""PINN for a radial Poisson equation: second derivatives by autograd.grad twice. FAULT at step 110: a collocation point is the
origin itself, where r = sqrt(x^2+y^2) has no derivative: u_x is NaN there, so the residual and the loss are. Cause:
backward_arithmetic (double backward; forward_arithmetic accepted, as it is in the loss), step 110, place: none or loss/model input.
Right: eps below the sqrt. Wrong: learning rate, mask, weights, range of dtypes, 'the batch held NaN'."""
EXPECT = {"cause": ["backward_arithmetic", "forward_arithmetic"], "step": [110, 110], "place": None, "rank": 0,
          "wrong": ["learning rate", "[Mm]ask", "checkpoint", "GradScaler", "bfloat16", "samples that are not finite"], "right": "sqrt|norm|eps"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Radial(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(1, width), nn.Linear(width, width), nn.Linear(width, 1)
    def forward(self, xy):
        r = xy.pow(2).sum(1, keepdim=True).sqrt()
        return self.l3(torch.tanh(self.l2(torch.tanh(self.l1(r)))))

def laplacian(u, xy):
    (du,) = torch.autograd.grad(u.sum(), xy, create_graph=True)
    out = 0
    for k in range(2):
        (d2,) = torch.autograd.grad(du[:, k].sum(), xy, create_graph=True)
        out = out + d2[:, k]
    return out

net = Radial()
opt = torch.optim.Adam(net.parameters(), 2e-3)
watch = rangewatch.attach(net, opt)
for it in range(200):
    xy = 2 * torch.rand(128, 2) - 1
    if it == 110:
        xy[17] = 0.0
    xy.requires_grad_(True)
    u = net(xy)
    pde = (laplacian(u, xy) + torch.exp(-xy.pow(2).sum(1))).pow(2).mean()
    theta = 6.2832 * torch.rand(64)
    edge = net(torch.stack([theta.cos(), theta.sin()], 1)).pow(2).mean()
    loss = pde + 10 * edge
    watch.log(loss=loss, pde=pde, edge=edge)
    opt.zero_grad()
    loss.backward()
    opt.step()
