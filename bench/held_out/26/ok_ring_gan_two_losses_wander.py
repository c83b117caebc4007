"""A GAN on a ring of points: the two losses wander about and neither falls. HEALTHY: the radius of the fakes swings about 1.
Without Rangewatch: losses 1.2 to 1.5 and 0.64 to 1.1 throughout; mean radius 0.21 at step 0, then 0.3 to 2.1."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6146); torch.set_num_threads(1)
G = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
D = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
g_opt = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.99))
d_opt = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.99))
handle = rangewatch.attach(nn.ModuleDict({"G": G, "D": D}), [g_opt, d_opt])
for step in range(300):
    a = 6.2832 * torch.rand(128, 1)
    real = torch.cat((a.cos(), a.sin()), 1) + 0.05 * torch.randn(128, 2)
    fake = G(torch.randn(128, 4))
    d_loss = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()
    g_loss = F.softplus(-D(fake)).mean()
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()
    if step % 25 == 0 or step == 299:
        print(step, d_loss.item(), g_loss.item(), "radius", fake.norm(dim=1).mean().item(), fake.norm(dim=1).std().item(), flush=True)
    handle.log(loss=d_loss.item(), generator=g_loss.item())
handle.detach()
