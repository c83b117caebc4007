"""A hinge GAN with spectral norm on small images, two optimizers with rates of their own, two steps of the discriminator for one of the generator.
HEALTHY: the discriminator's loss rises while the generator catches up, the generator's goes up and down around 0, neither falls as a loss does.
Without Rangewatch: the distance between what is generated and what is real falls from 0.88 to 0.03, the discriminator's loss rises to 1.67."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
import rangewatch

torch.manual_seed(41); torch.set_num_threads(1)
generator = nn.Sequential(nn.Linear(16, 128), nn.Unflatten(1, (32, 2, 2)), nn.ReLU(), nn.ConvTranspose2d(32, 24, 4, 2, 1), nn.BatchNorm2d(24), nn.ReLU(),
                          nn.ConvTranspose2d(24, 1, 4, 2, 1), nn.Tanh())
discriminator = nn.Sequential(spectral_norm(nn.Conv2d(1, 24, 4, 2, 1)), nn.LeakyReLU(0.2), spectral_norm(nn.Conv2d(24, 32, 4, 2, 1)), nn.LeakyReLU(0.2),
                              nn.Flatten(), spectral_norm(nn.Linear(128, 1)))
both = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
opt_g = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.0, 0.99))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.0, 0.99))
watch = rangewatch.attach(both, [opt_g, opt_d], step_ends="first")
line = torch.linspace(-1, 1, 8)


def real(n=48):
    x, y = 0.8 * torch.rand(2, n, 1, 1) - 0.4
    return (2 * torch.exp(-6 * ((line[None, :, None] - x) ** 2 + (line[None, None] - y) ** 2)) - 1)[:, None]


for step in range(200):
    for _ in range(2):
        loss_d = F.relu(1 - discriminator(real())).mean() + F.relu(1 + discriminator(generator(torch.randn(48, 16)).detach())).mean()
        opt_d.zero_grad(); loss_d.backward(); opt_d.step()
    fake = generator(torch.randn(48, 16))
    loss_g = -discriminator(fake).mean()
    opt_g.zero_grad(); loss_g.backward(); opt_g.step()
    watch.log(loss=loss_g.item(), loss_d=loss_d.item())
    if step % 20 == 0:
        mean, wanted = fake.detach().mean((0, 1)), real(500).mean((0, 1))
        print(step, "g", round(loss_g.item(), 4), "d", round(loss_d.item(), 4), "distance", round((mean - wanted).abs().mean().item(), 4))
