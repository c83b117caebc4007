"""A hinge GAN on a mixture of eight hills, with spectral norm in the judge; two optimizers, the judge's is watched with its maker in one module. HEALTHY: the losses
go up and down and do not fall, the maker's is below 0 at times; what counts is the distance to the hills, which falls.
Without Rangewatch: @@"""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
import rangewatch

torch.manual_seed(2443); torch.set_num_threads(1)
a = torch.arange(8) * 0.7854
hills = 2 * torch.stack((a.cos(), a.sin()), 1)
maker = nn.Sequential(nn.Linear(6, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 2))
judge = nn.Sequential(spectral_norm(nn.Linear(2, 64)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(64, 64)), nn.LeakyReLU(0.2), nn.Linear(64, 1))
duel = nn.ModuleDict({"maker": maker, "judge": judge})
optimizer = torch.optim.Adam([{"params": maker.parameters(), "lr": 1e-3}, {"params": judge.parameters(), "lr": 2e-3}], betas=(0.5, 0.99))
handle = rangewatch.attach(duel, optimizer)
for step in range(240):
    real = hills[torch.randint(0, 8, (96,))] + 0.1 * torch.randn(96, 2)
    fake = maker(torch.randn(96, 6))
    judge_loss = F.relu(1 - judge(real)).mean() + F.relu(1 + judge(fake.detach())).mean()
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
