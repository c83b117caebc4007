"""A Wasserstein GAN with gradient penalty on eight points of a circle, two Adam optimizers with beta1 of 0, one generator step for three of the critic; the
penalty needs a graph of the gradient. The critic's loss falls and then rises slowly, the generator's has no bottom. HEALTHY. Without Rangewatch:
critic 8.4 to 1.04 at step 60 and 1.77 at the end, generator 0.16 to -1.85, slope 0.09 to 0.85."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(628); torch.set_num_threads(1)


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
        self.critic = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))

    def forward(self, z):
        return self.generator(z)


def real(n=64):
    angle = torch.randint(0, 8, (n,)) * 6.2832 / 8
    return 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2)


gan = GAN()
opt_d = torch.optim.Adam(gan.critic.parameters(), lr=5e-4, betas=(0.0, 0.9))
opt_g = torch.optim.Adam(gan.generator.parameters(), lr=5e-4, betas=(0.0, 0.9))
handle = rangewatch.attach(gan, [opt_d, opt_g])
for step in range(240):
    x, fake = real(), gan(torch.randn(64, 4)).detach()
    between = torch.lerp(x, fake, torch.rand(64, 1)).requires_grad_()
    slope, = torch.autograd.grad(gan.critic(between).sum(), between, create_graph=True)
    loss_d = gan.critic(fake).mean() - gan.critic(x).mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    if step % 3 == 0:
        loss_g = -gan.critic(gan(torch.randn(64, 4))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
    handle.log(loss=loss_d.item(), loss_g=loss_g.item())
    if step % 20 == 0 or step == 239:
        print(step, loss_d.item(), loss_g.item(), slope.norm(dim=1).mean().item(), flush=True)
handle.detach()
