"""An MLP-mixer-like net that tells leaves by their outline (32 radii), with RMSprop and momentum. FAULT: the momentum is raised by 0.003 a step from 0.7 and nobody stops
it: from step 100 it is above 1, the velocity grows by itself.
Without Rangewatch: loss 1.45 to 0.031 at step 80, 0.041 at 100, 0.043 at 120, 0.80 at 140, 8854 at 160, 3e21 at the end.
Cause: optimizer or learning_rate. Step: 100 (momentum 0.9997 to 1.003). Right: momentum. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["optimizer", "learning_rate"], "step": [90, 150], "place": None, "rank": None,
          "right": "(?i)momentum|schedul|learning rate", "wrong": ["GradScaler", "attention mask", "all_reduce"]}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6112); torch.set_num_threads(1)
angle = torch.linspace(0, 2 * math.pi, 33)[:-1]


class Mixer(nn.Module):
    def __init__(self, patches=8, d=32):
        super().__init__()
        self.embed = nn.Linear(4, d)
        self.norm1, self.across = nn.LayerNorm(d), nn.Sequential(nn.Linear(patches, 16), nn.GELU(), nn.Linear(16, patches))
        self.norm2, self.within = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, 48), nn.GELU(), nn.Linear(48, d))
        self.name = nn.Linear(d, 4)

    def forward(self, x):
        h = self.embed(x.view(len(x), 8, 4))
        h = h + self.across(self.norm1(h).transpose(1, 2)).transpose(1, 2)
        h = h + self.within(self.norm2(h))
        return self.name(h.mean(1))


def leaves(n):
    kind, turn = torch.randint(0, 4, (n,)), 2 * math.pi * torch.rand(n, 1)
    lobes = torch.tensor([1.0, 3.0, 5.0, 7.0])[kind][:, None]
    return 1 + 0.3 * torch.cos(lobes * (angle - turn)) + 0.1 * torch.randn(n, 32), kind


net = Mixer()
optimizer = torch.optim.RMSprop(net.parameters(), lr=3e-4, momentum=0.7)
handle = rangewatch.attach(net, optimizer)
for step in range(210):
    x, kind = leaves(80)
    loss = F.cross_entropy(net(x), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for group in optimizer.param_groups:
        group["momentum"] += 0.003
    if step % 20 == 0 or step == 209:
        print(step, loss.item(), "momentum", optimizer.param_groups[0]["momentum"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
