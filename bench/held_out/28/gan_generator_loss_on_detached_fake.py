"""A GAN that learns a ring of eight Gaussians. FAULT from the start: one `fake = G(z).detach()` serves both the discriminator and the generator step (to spare a forward); the loss of
the generator has no way back to G, its gradients are None, its optimizer moves nothing. The discriminator soon tells all fakes.
Without Rangewatch: loss of D 1.39 to 0.0066, of G 0.66 to 5.6; the fakes keep a radius of 0.08 (the ring has 2), the gradient of G is None throughout.
Cause: no_gradient. Step: 0. Place: the generator. Right: detach / no gradient / graph. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["no_gradient"], "step": [0, 60], "place": "G(\\..*)?", "rank": None,
          "right": "(?i)detach|no_grad|gradient|graph", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2014); torch.set_num_threads(1)
G = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
D = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.999))
handle = rangewatch.attach(nn.ModuleDict({"G": G, "D": D}), [opt_g, opt_d])


def ring(n):
    a = torch.randint(0, 8, (n,)) * math.pi / 4
    return torch.stack((a.cos(), a.sin()), 1) * 2 + 0.05 * torch.randn(n, 2)


ones, zeros = torch.ones(128, 1), torch.zeros(128, 1)
for step in range(220):
    real = ring(128)
    fake = G(torch.randn(128, 8)).detach()

    opt_d.zero_grad()
    loss_d = F.binary_cross_entropy_with_logits(D(real), ones) + F.binary_cross_entropy_with_logits(D(fake), zeros)
    loss_d.backward()
    opt_d.step()

    opt_g.zero_grad()
    loss_g = F.binary_cross_entropy_with_logits(D(fake), ones)
    loss_g.backward()
    opt_g.step()
    if step % 20 == 0 or step == 219:
        print(step, loss_d.item(), loss_g.item(), "radius of the fakes", fake.norm(dim=1).mean().item(), G[0].weight.grad, flush=True)
    handle.log(loss=loss_d.item() + loss_g.item())
handle.detach()
