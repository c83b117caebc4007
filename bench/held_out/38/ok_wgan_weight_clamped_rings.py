"""A Wasserstein GAN of 2-d rings, the 2017 way: the critic's weights are clamped to +-0.08 after each of its steps (many sit at the bound, as meant), RMSprop for both, three critic steps for one of the generator's. The critic alone is watched.
HEALTHY: the critic's loss is negative and never "converges", it has no lower end but the clamp; weights change outside of the optimizer in each step, by the clamp.
Without Rangewatch: the critic's loss 0.007, -0.18 at step 90, -0.08 at step 210, -0.11 in the end; the fakes' radius grows from 0.09 to 0.81 (the ring's is 1)."""
EXPECT = {"healthy": True}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(17); torch.set_num_threads(1)


def ring(n):
    a = 2 * math.pi * torch.rand(n)
    return torch.stack([a.cos(), a.sin()], 1) + 0.05 * torch.randn(n, 2)


critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
forger = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
opt_c = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
opt_f = torch.optim.RMSprop(forger.parameters(), lr=2e-4)
handle = rangewatch.attach(critic, opt_c)
for step in range(240):
    with torch.no_grad():
        fake = forger(torch.randn(64, 6))
    loss = critic(fake).mean() - critic(ring(64)).mean()
    opt_c.zero_grad()
    loss.backward()
    opt_c.step()
    with torch.no_grad():
        for p in critic.parameters():
            p.clamp_(-0.08, 0.08)
    if step % 3 == 2:
        critic.requires_grad_(False)
        opt_f.zero_grad()
        (-critic(forger(torch.randn(64, 6))).mean()).backward()
        opt_f.step()
        critic.requires_grad_(True)
    if step % 30 == 0 or step == 239:
        r = fake.norm(dim=1)
        print(step, f"critic's loss {loss.item():.5f} fakes' radius {r.mean().item():.2f} +- {r.std().item():.2f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
