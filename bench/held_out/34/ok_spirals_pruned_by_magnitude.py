"""A wide MLP tells three spirals apart (Adam). HEALTHY: at steps 120, 170 and 220 the smallest weights are pruned on purpose (50 %, 75 %, 88 % of each hidden layer is then 0 and held at 0), the loss leaps up and
recovers each time; some units lose all their weights.
Without Rangewatch: loss 1.11 to 0.014 at step 119, 0.068 at 120, 0.297 at 220, 0.029 at the end."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3433); torch.set_num_threads(1)


def spirals(n):
    y = torch.randint(0, 3, (n,))
    r = torch.rand(n)
    a = 5 * r + 2.094 * y + 0.1 * torch.randn(n)
    return torch.stack([r * a.cos(), r * a.sin()], 1) * 2, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(2, 96), nn.Linear(96, 96), nn.Linear(96, 96)
        self.last = nn.Linear(96, 3)

    def forward(self, x):
        for layer in (self.first, self.second, self.third):
            x = layer(x).relu()
        return self.last(x)


net = Net()
masks = {}


def prune(share):
    for layer in (net.second, net.third):
        w = layer.weight
        masks[layer] = (w.abs() >= w.abs().flatten().kthvalue(int(share * w.numel())).values).float()


@torch.no_grad()
def hold():
    for layer, m in masks.items():
        layer.weight.mul_(m)


optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(290):
    if step in (120, 170, 220):
        prune({120: 0.5, 170: 0.75, 220: 0.88}[step])
        hold()
    x, y = spirals(96)
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hold()
    if step % 20 == 0 or step in (119, 120, 169, 170, 171, 219, 220, 221, 289):
        print(step, loss.item(), "zeros", (net.second.weight == 0).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
