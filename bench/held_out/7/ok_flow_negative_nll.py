"""A RealNVP on points near two thin moons: the negative log-likelihood has no bottom at zero, it goes far below, the scales grow, and the gradient
norm grows with them (clipped). HEALTHY.
Without Rangewatch: loss 1.86, -1.19 at step 20, -1.64 at step 200, -1.89 at the end; gradient norm 1 to 34."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(731); torch.set_num_threads(1)


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 2))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1) if not self.flip else x.chunk(2, 1)[::-1]
        s, t = self.net(a).chunk(2, 1)
        s = 3 * torch.tanh(s / 3)
        b = b * s.exp() + t
        return torch.cat([a, b] if not self.flip else [b, a], 1), s.squeeze(1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(i % 2 == 1) for i in range(6))

    def forward(self, x):
        logdet = torch.zeros(len(x))
        for layer in self.layers:
            x, s = layer(x)
            logdet = logdet + s
        return 0.5 * x.pow(2).sum(1) + 1.838 - logdet


def moons(n=256):
    t, side = 3.1416 * torch.rand(n), torch.randint(0, 2, (n,)).float()
    x = torch.stack([t.cos() + side - 0.5, torch.where(side > 0, 0.4 - t.sin(), t.sin() - 0.1)], 1)
    return 0.2 * (x + 0.02 * torch.randn(n, 2))


model = Flow()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    loss = model(moons()).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 20 == 0 or step == 299:
        print(step, loss.item(), norm.item(), flush=True)
handle.detach()
