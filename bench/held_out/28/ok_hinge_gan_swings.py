"""A GAN with the hinge loss that learns a bent line; two steps of the critic for one of the generator, losses that swing around and change their sign. HEALTHY: the fakes come near the line.
Without Rangewatch: loss of D 1.96 to 1.88, of G between -0.17 and 0.29; the fakes are 1.08 off the line at first, 0.41 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
import rangewatch

torch.manual_seed(606); torch.set_num_threads(1)
G = nn.Sequential(nn.Linear(4, 48), nn.LeakyReLU(0.1), nn.Linear(48, 48), nn.LeakyReLU(0.1), nn.Linear(48, 2))
D = nn.Sequential(spectral_norm(nn.Linear(2, 64)), nn.LeakyReLU(0.1), spectral_norm(nn.Linear(64, 64)), nn.LeakyReLU(0.1), nn.Linear(64, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.0, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.0, 0.9))
handle = rangewatch.attach(nn.ModuleDict({"G": G, "D": D}), [opt_g, opt_d])


def real(n):
    u = 2 * torch.rand(n, 1) - 1
    return torch.cat((u * 2, u * u * 2 - 1), 1) + 0.05 * torch.randn(n, 2)


for step in range(200):
    for _ in range(2):
        fake = G(torch.randn(96, 4)).detach()
        loss_d = F.relu(1 - D(real(96))).mean() + F.relu(1 + D(fake)).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
    fake = G(torch.randn(96, 4))
    loss_g = -D(fake).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    if step % 20 == 0 or step == 199:
        off = (fake[:, 1] - (fake[:, 0] ** 2 / 2 - 1)).abs().mean().item()
        print(step, loss_d.item(), loss_g.item(), "off the line", off, flush=True)
    handle.log(loss=loss_g.item(), loss_d=loss_d.item())
handle.detach()
