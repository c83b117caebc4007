"""A Wasserstein GAN with gradient penalty on two moons; the critic gets 4 updates per generator update; the agent watches the critic (Adam, betas (0, 0.9)).
HEALTHY: the loss is negative, has no floor and swings; the critic has no sigmoid; its gradients also hold what the generator's backward left until its own zero_grad; backward runs twice through the graph (create_graph).
Without Rangewatch: critic loss 0.96 at step 0, -0.7 at step 160, -0.06 at step 399; the fakes' standard deviation grows from (0.03, 0.05) to (0.92, 0.44), the data's is about (0.87, 0.5)."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2017)
torch.set_num_threads(1)


def moons(n):
    a = 3.1416 * torch.rand(n, 1)
    side = (torch.rand(n, 1) < 0.5).float()
    x = torch.cat([a.cos() * (1 - 2 * side) + side, a.sin() * (1 - 2 * side) + 0.5 * side], 1)
    return x + 0.05 * torch.randn(n, 2)


def net(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, o))


generator, critic = net(4, 2), net(2, 1)
opt_g = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.0, 0.9))
opt_c = torch.optim.Adam(critic.parameters(), lr=3e-3, betas=(0.0, 0.9))
handle = rangewatch.attach(critic, opt_c)
for step in range(400):
    real = moons(64)
    fake = generator(torch.randn(64, 4)).detach()
    mix = torch.rand(64, 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    slope, = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = 1 * ((slope.norm(dim=1) - 1) ** 2).mean()
    gap = critic(fake).mean() - critic(real).mean()
    loss = gap + penalty
    opt_c.zero_grad()
    loss.backward()
    opt_c.step()
    if step % 4 == 3:
        opt_g.zero_grad()
        (-critic(generator(torch.randn(64, 4))).mean()).backward()
        opt_g.step()
    if step % 40 == 0 or step == 399:
        print(step, f"critic {loss.item():.4f} penalty {penalty.item():.4f} mean gap {(fake.mean(0) - real.mean(0)).norm().item():.3f} std {fake.std(0).tolist()}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
