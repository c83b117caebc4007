"""A GAN on points of a ring (2-d), two Adams with beta1 = 0.5, an EMA of the generator.
HEALTHY: neither loss comes down (D stays between 1.06 and 1.38, G even goes up from 0.67 to 1.15), as is the rule with GANs; the fakes are detached in the discriminator's step, the EMA copy gets no gradient. What counts, the samples' radius, gets right.
Without Rangewatch: D 1.38 to 1.06 .. 1.34, G 0.67 to 0.76 .. 1.15; radius of the samples 0.14 at first, 1.42 +- 0.34 at 399."""
EXPECT = {"healthy": True}
import copy
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(9)
torch.set_num_threads(1)


def ring(n):
    a = 6.2832 * torch.rand(n)
    r = 1.5 + 0.08 * torch.randn(n)
    return torch.stack([r * a.cos(), r * a.sin()], 1)


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 2))
        self.critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))


gan = GAN()
ema = copy.deepcopy(gan.generator).requires_grad_(False)
opt_d = torch.optim.Adam(gan.critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
opt_g = torch.optim.Adam(gan.generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
handle = rangewatch.attach(gan, [opt_d, opt_g])
for it in range(400):
    fake = gan.generator(torch.randn(128, 8))
    loss_d = F.softplus(-gan.critic(ring(128))).mean() + F.softplus(gan.critic(fake.detach())).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()

    loss_g = F.softplus(-gan.critic(fake)).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), gan.generator.parameters()):
            e.lerp_(p, 0.05)
    handle.log(loss=loss_d.item(), loss_g=loss_g.item())
    if it % 40 == 0 or it == 399:
        with torch.no_grad():
            r = ema(torch.randn(512, 8)).norm(dim=1)
        print(f"it {it} loss D {loss_d.item():.3f} G {loss_g.item():.3f} radius of samples {r.mean().item():.2f} +- {r.std().item():.2f} (wanted 1.50 +- 0.08)", flush=True)
handle.detach()
