"""A Wasserstein GAN of two clumps of points with a gradient penalty: two steps of the critic for one of the generator, one Adam with two groups of which only
one has gradients at a time. HEALTHY: the losses are below 0, rise or stand; the samples come to the lower clump first.
Without Rangewatch: the mean of the samples moves from (-0.05, -0.06) to (1.47, -0.45), true are (1.5, 0); the critic's loss goes from 4.0 at step 0
to -1.3 at step 31 and up to -0.49 at step 241 (less and less to tell apart), the generator's is -0.16 to -1.15."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2534); torch.set_num_threads(1)
both = nn.ModuleDict({
    "maker": nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)),
    "critic": nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))})
maker, critic = both["maker"], both["critic"]
optimizer = torch.optim.Adam([{"params": maker.parameters(), "lr": 1e-3}, {"params": critic.parameters()}], lr=2e-3, betas=(0.5, 0.9))
slower = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.988)
handle = rangewatch.attach(both, optimizer)
for step in range(255):
    side = torch.randint(0, 2, (128, 1)) * 2.0 - 1
    real = torch.cat((1.5 + 0.3 * torch.randn(128, 1), 0.8 * side + 0.3 * torch.randn(128, 1)), 1)
    optimizer.zero_grad(set_to_none=True)
    if step % 3 < 2:
        with torch.no_grad():
            fake = maker(torch.randn(128, 4))
        t = torch.rand(128, 1)
        between = (t * real + (1 - t) * fake).requires_grad_(True)
        slope, = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        loss = critic(fake).mean() - critic(real).mean() + 5 * ((slope.norm(dim=1) - 1) ** 2).mean()
        loss.backward()
    else:
        loss = -critic(maker(torch.randn(128, 4))).mean()
        loss.backward()
        for p in critic.parameters():
            p.grad = None
    optimizer.step()
    slower.step()
    if step % 15 < 3 and step % 30 < 15 or step == 254:
        with torch.no_grad():
            r = maker(torch.randn(512, 4))
        print(step, loss.item(), "mean (true 1.5, 0) and deviation (true 0.3, 0.85)", r.mean(0).tolist(), r.std(0).tolist(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
