"""HEALTHY: DP-SGD by torch.func (vmap of grad, per-sample clipping, noise), parameters updated by hand into .data; handle.step(); 400 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 4))
handle = rangewatch.attach(net)
protos = torch.randn(4, 12)

def loss_of(params, x, y):
    return F.cross_entropy(functional_call(net, params, (x[None],)), y[None])

per_sample = vmap(grad(loss_of), in_dims=(None, 0, 0))
for step in range(400):
    y = torch.randint(0, 4, (32,))
    x = protos[y] + torch.randn(32, 12)
    params = {n: p.detach() for n, p in net.named_parameters()}
    grads = per_sample(params, x, y)
    norm = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    clip = (1.0 / (norm + 1e-6)).clamp(max=1.0)
    with torch.no_grad():
        for n, p in net.named_parameters():
            g = torch.einsum("b...,b->...", grads[n], clip) / 32
            p -= 0.5 * (g + 0.01 * torch.randn_like(g))
        loss = F.cross_entropy(net(x), y)
    handle.log(loss=loss.item())
    handle.step()
