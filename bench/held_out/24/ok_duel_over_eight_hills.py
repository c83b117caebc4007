"""A hinge GAN on a mixture of eight hills, with a penalty on the slope of the judge; one optimizer with two rates for both. HEALTHY: the losses
go up and down and do not fall, the maker's is below 0 at times; what counts is the distance to the hills, which falls.
Without Rangewatch: loss of the judge 1.99 to 1.78; the distance to the next hill falls from 1.39 to 0.53."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2443); torch.set_num_threads(1)
a = torch.arange(8) * 0.7854
hills = 1.5 * torch.stack((a.cos(), a.sin()), 1)
maker = nn.Sequential(nn.Linear(6, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 2))
judge = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
duel = nn.ModuleDict({"maker": maker, "judge": judge})
optimizer = torch.optim.Adam([{"params": maker.parameters(), "lr": 1e-3}, {"params": judge.parameters(), "lr": 2e-3}], betas=(0.0, 0.9))
handle = rangewatch.attach(duel, optimizer)
for step in range(240):
    real = hills[torch.randint(0, 8, (96,))] + 0.1 * torch.randn(96, 2)
    fake = maker(torch.randn(96, 6))
    judge_loss = F.relu(1 - judge(real)).mean() + F.relu(1 + judge(fake.detach())).mean()
    real.requires_grad_(True)
    slope = torch.autograd.grad(judge(real).sum(), real, create_graph=True)[0]
    judge_loss = judge_loss + 0.3 * slope.square().sum(1).mean()
    judge.requires_grad_(False)
    maker_loss = -judge(fake).mean()
    judge.requires_grad_(True)
    optimizer.zero_grad()
    (judge_loss + maker_loss).backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, judge_loss.item(), maker_loss.item(), "distance to the next hill", torch.cdist(fake.detach(), hills).min(1).values.mean().item(), flush=True)
    handle.log(loss=judge_loss.item(), maker_loss=maker_loss.item())
handle.detach()
