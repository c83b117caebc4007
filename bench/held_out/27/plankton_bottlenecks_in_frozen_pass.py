"""A conv net for plankton with a frozen pre-trained body; small bottleneck adapters behind each of its blocks and a new head are trained (RAdam). FAULT from the
start: `features` stands under @torch.no_grad since the body is frozen, and the adapters run inside it: no backward reaches them.
Without Rangewatch: loss 1.64 to 0.34 by the head alone; the adapters stay at 0.0, their grad is None.
Cause: no_gradient. Step: any. Place: the adapters. Right: no_grad / detach / gradient. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["no_gradient"], "step": [0, 180], "place": "adapters.*", "rank": None,
          "right": "(?i)no_grad|detach|no gradient|graph|requires_grad|never|reach|unused|not? .*gradient", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2715); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.linspace(-1, 1, 20), torch.linspace(-1, 1, 20), indexing="ij")


def plankton(n, tilt):
    y = torch.randint(0, 4, (n,))
    a = tilt + 0.3 * torch.randn(n, 1, 1)
    u, v = xx * a.cos() + yy * a.sin(), -xx * a.sin() + yy * a.cos()
    forms = torch.stack((torch.exp(-8 * (u ** 2 + v ** 2)), torch.exp(-20 * u ** 2 - 2 * v ** 2),
                         torch.exp(-20 * (u ** 2 + v ** 2 - 0.4) ** 2), torch.exp(-2 * u ** 2 - 20 * v ** 2)), 1)
    return (forms[torch.arange(n), y] + 0.3 * torch.randn(n, 20, 20))[:, None], y


class Adapter(nn.Module):
    def __init__(self, channels, narrow=6):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, narrow, 1), nn.Conv2d(narrow, channels, 1)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x):
        return x + self.up(F.gelu(self.down(x)))


class Plankton(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv2d(1, 12, 3, 2), nn.Conv2d(12, 16, 3, 2)])
        self.adapters = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.head = nn.Linear(16 * 16, 4)

    def body(self, x):
        for block, adapter in zip(self.blocks, self.adapters):
            x = adapter(F.relu(block(x)))
        return x.flatten(1)

    @torch.no_grad()
    def features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.features(x))


net = Plankton()
pre = torch.optim.Adam(net.parameters(), lr=2e-3)
for _ in range(60):
    x, y = plankton(32, 0.0)
    loss = F.cross_entropy(net.head(net.body(x)), y)
    pre.zero_grad(); loss.backward(); pre.step()
print("pre-trained", loss.item())

net.blocks.requires_grad_(False)
net.adapters = nn.ModuleList([Adapter(12), Adapter(16)])
net.head = nn.Linear(16 * 16, 4)
optimizer = torch.optim.RAdam([p for p in net.parameters() if p.requires_grad], lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    x, y = plankton(32, 0.8)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), "adapter", net.adapters[0].up.weight.abs().sum().item(), net.adapters[0].up.weight.grad, flush=True)
    handle.log(loss=loss.item())
handle.detach()
