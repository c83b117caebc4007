"""A Wasserstein GAN with a gradient penalty (a backward of second order) that draws a spiral; two steps of the critic to one of the generator, the critic is the net that is watched. HEALTHY:
odd is that its loss begins at the penalty, falls below 0 and rises back towards 0 as the generator learns; beta1 is 0.
Figures: loss 1.95, -0.62 at step 40, -0.07 at the end; distance 0.65 at step 40, 0.11 at the end; from the spiral to the nearest drawn point 1.39 at step 20, 0.72 at the end."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2137)
torch.set_num_threads(1)


def spiral(n):
    t = torch.rand(n, 1).sqrt() * 9
    return torch.cat((t.cos(), t.sin()), 1) * t / 5 + 0.03 * torch.randn(n, 2)


critic = nn.Sequential(nn.Linear(2, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 1))
generator = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
c_opt = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
g_opt = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
handle = rangewatch.attach(critic, c_opt)
for step in range(260):
    real = spiral(96)
    with torch.no_grad():
        fake = generator(torch.randn(96, 4))
    mix = torch.lerp(real, fake, torch.rand(96, 1)).requires_grad_()
    slope, = torch.autograd.grad(critic(mix).sum(), mix, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).square().mean()
    distance = critic(real).mean() - critic(fake).mean()
    loss = 2 * penalty - distance
    c_opt.zero_grad()
    loss.backward()
    c_opt.step()
    if step % 2 == 1:
        g_opt.zero_grad()
        (-critic(generator(torch.randn(96, 4))).mean()).backward()
        g_opt.step()
    if step % 20 == 0 or step == 259:
        print(step, loss.item(), "distance", distance.item(), "from the spiral to the nearest drawn point", torch.cdist(spiral(500), fake).min(1).values.mean().item(), flush=True)
    handle.log(loss=loss.item(), distance=distance.item())
handle.detach()
