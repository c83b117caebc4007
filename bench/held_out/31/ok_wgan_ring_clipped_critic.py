"""A Wasserstein GAN on points of a ring; the critic's weights are clipped to 0.1 after each of its three updates (RMSprop), the watched model is the generator. HEALTHY: the logged loss is negative or positive and wanders about,
the generator's gradients are small, but the radius of the generated points comes to that of the ring.
Without Rangewatch: loss 0 to 0.26, rising; the radius comes from 0.16 to 1.4 to 1.6 (1.5 is right)."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(131); torch.set_num_threads(1)
maker = nn.Sequential(nn.Linear(4, 48), nn.ELU(), nn.Linear(48, 48), nn.ELU(), nn.Linear(48, 2))
critic = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
optimizer = torch.optim.RMSprop(maker.parameters(), lr=1e-3)
critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
handle = rangewatch.attach(maker, optimizer)


def ring(n):
    t = 6.283 * torch.rand(n)
    return 1.5 * torch.stack([t.cos(), t.sin()], 1) + 0.05 * torch.randn(n, 2)


for step in range(280):
    for _ in range(3):
        with torch.no_grad():
            fake = maker(torch.randn(64, 4))
        critic_loss = critic(fake).mean() - critic(ring(64)).mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        with torch.no_grad():
            for p in critic.parameters():
                p.clamp_(-0.1, 0.1)
    points = maker(torch.randn(64, 4))
    loss = -critic(points).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 279:
        print(step, loss.item(), "radius", points.norm(dim=1).mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
