"""A Wasserstein GAN with gradient penalty on a ring of points; two steps of the critic for each of the generator (two Adams, beta1 = 0). HEALTHY: the critic's
loss is below zero and swings, the generator's goes up; only the distance of the samples to the ring tells that it learns.
Without Rangewatch: critic 0.82 to -0.47 (between 0 and -1.2), generator 0.03 to 11.4; off the ring by 1.85 at first, by 0.51 at the end."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2734); torch.set_num_threads(1)


def ring(n):
    a = 6.28 * torch.rand(n, 1)
    return 2 * torch.cat((a.cos(), a.sin()), 1) + 0.05 * torch.randn(n, 2)


def mlp(a, b):
    return nn.Sequential(nn.Linear(a, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, b))


nets = nn.ModuleDict({"generator": mlp(4, 2), "critic": mlp(2, 1)})
make = torch.optim.Adam(nets["generator"].parameters(), lr=2e-3, betas=(0.0, 0.9))
judge = torch.optim.Adam(nets["critic"].parameters(), lr=2e-3, betas=(0.0, 0.9))
handle = rangewatch.attach(nets, [make, judge])
for step in range(200):
    for _ in range(2):
        real = ring(64)
        fake = nets["generator"](torch.randn(64, 4)).detach()
        u = torch.rand(64, 1)
        between = (u * real + (1 - u) * fake).requires_grad_(True)
        slope, = torch.autograd.grad(nets["critic"](between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).pow(2).mean()
        critic_loss = nets["critic"](fake).mean() - nets["critic"](real).mean() + penalty
        judge.zero_grad()
        critic_loss.backward()
        judge.step()
    made = nets["generator"](torch.randn(64, 4))
    loss = -nets["critic"](made).mean()
    make.zero_grad()
    loss.backward()
    make.step()
    if step % 20 == 0 or step == 199:
        print(step, "critic", critic_loss.item(), "generator", loss.item(), "off the ring", (made.norm(dim=1) - 2).abs().mean().item(), flush=True)
    handle.log(loss=loss.item(), critic=critic_loss.item())
handle.detach()
