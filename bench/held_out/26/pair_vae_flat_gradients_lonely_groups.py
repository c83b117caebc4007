"""Two gloo ranks train a VAE of sensor rows; the gradients are laid flat in one buffer and summed over a process group. FAULT from the start: the group comes from
new_subgroups(group_size=1): each rank is in a group of its own, the sum is its own gradient, and the two replicas part.
Without Rangewatch: loss 31 and 33 to 1.44 and 1.40; the sums of the weights are -3.75 and -3.73 after step 0, -9.9 and -9.3 at step 40, -13.5 and -11.7 at the end.
Cause: replicas or communication. Step: any. Right: group / all_reduce / replicas. Wrong: GradScaler, lower the learning rate."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 180], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)group|replica|reduc|rank|averag", "wrong": ["[Ll]ower the learning rate", "GradScaler"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, nodes = dist.get_rank(), 2
torch.manual_seed(6128); torch.set_num_threads(1)
group, _ = dist.new_subgroups(group_size=dist.get_world_size() // nodes)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(20, 48), nn.Softplus(), nn.Linear(48, 8))
        self.dec = nn.Sequential(nn.Linear(4, 48), nn.Softplus(), nn.Linear(48, 20))

    def forward(self, x, g):
        mean, log = self.enc(x).chunk(2, 1)
        z = mean + (log / 2).exp() * torch.randn(mean.shape, generator=g)
        kl = 0.5 * (mean ** 2 + log.exp() - 1 - log).sum(1).mean()
        return F.mse_loss(self.dec(z), x, reduction="sum") / len(x) + 0.1 * kl


net = VAE()
mix = torch.randn(3, 20)
optimizer = torch.optim.Adamax(net.parameters(), lr=1e-2)
handle = rangewatch.attach(net, optimizer)
g = torch.Generator().manual_seed(900 + rank)
for step in range(180):
    x = torch.randn(48, 3, generator=g).tanh() @ mix + 0.1 * torch.randn(48, 20, generator=g)
    loss = net(x, g)
    optimizer.zero_grad()
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in net.parameters()])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    at = 0
    for p in net.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()
    optimizer.step()
    if step % 20 == 0 or step in (1, 179):
        print(rank, step, loss.item(), "sum of weights", sum(p.sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
