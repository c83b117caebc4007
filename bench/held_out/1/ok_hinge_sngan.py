"""HEALTHY: hinge GAN, spectrally normalised critic stepping twice for each step of the generator, R1 penalty (lazy, each 16th step, so that the
gradients are sixteen times as large there), instance noise that fades out; losses wander and never settle; two optimizers, 220 generator steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(16, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 2))
        self.critic = nn.Sequential(spectral_norm(nn.Linear(2, 128)), nn.LeakyReLU(0.1), spectral_norm(nn.Linear(128, 128)), nn.LeakyReLU(0.1), spectral_norm(nn.Linear(128, 1)))

gan = Gan()
opt_g = torch.optim.Adam(gan.generator.parameters(), 2e-4, betas=(0.0, 0.9))
opt_d = torch.optim.Adam(gan.critic.parameters(), 4e-4, betas=(0.0, 0.9))
watch = rangewatch.attach(gan, [opt_g, opt_d])
def real(n=128):
    angle = torch.randint(0, 8, (n,)) * 0.785
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.05 * torch.randn(n, 2)
for step in range(220):
    sigma = max(0.0, 0.3 * (1 - step / 120))
    for _ in range(2):
        x, fake = real(), gan.generator(torch.randn(128, 16)).detach()
        x, fake = x + sigma * torch.randn_like(x), fake + sigma * torch.randn_like(fake)
        loss_d = F.relu(1 - gan.critic(x)).mean() + F.relu(1 + gan.critic(fake)).mean()
        if step % 16 == 0:
            x = x.requires_grad_()
            slope = torch.autograd.grad(gan.critic(x).sum(), x, create_graph=True)[0]
            loss_d = loss_d + 16 * 0.5 * slope.pow(2).sum(1).mean()
        opt_d.zero_grad(); loss_d.backward(); opt_d.step()
    loss_g = -gan.critic(gan.generator(torch.randn(128, 16))).mean()
    opt_g.zero_grad(); loss_g.backward(); opt_g.step()
    watch.log(loss_d=loss_d.item(), loss_g=loss_g.item())
    if step % 20 == 0:
        print(step, loss_d.item(), loss_g.item())
