"""A noise-predicting diffusion net of points on a spiral; an exponential average of its weights is lent to the net for a test every 40 steps and the trained
weights are put back after it. HEALTHY: the loss of such a net falls little and is noisy.
Without Rangewatch: loss 1.0 to 0.55 at step 20, 0.39 to 0.50 from step 40 on; the tests 0.597, 0.469, 0.448, 0.461, 0.440."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2536); torch.set_num_threads(1)
keep = torch.cumprod(1 - torch.linspace(1e-3, 0.15, 40), 0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(40, 32)
        self.point = nn.Linear(2, 32)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(32, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))

    def forward(self, x, t):
        return self.body(self.point(x) + self.time(t))


def spiral(n):
    a = 9 * torch.rand(n).sqrt()
    return torch.stack((a * a.cos(), a * a.sin()), 1) / 5 + 0.02 * torch.randn(n, 2)


def noise_loss(net, n):
    x, t, e = spiral(n), torch.randint(0, 40, (n,)), torch.randn(n, 2)
    k = keep[t, None]
    return nn.functional.mse_loss(net(k.sqrt() * x + (1 - k).sqrt() * e, t), e)


net = Denoiser()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
average = [p.detach().clone() for p in net.parameters()]
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    loss = noise_loss(net, 256)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for a, p in zip(average, net.parameters(), strict=True):
            a.lerp_(p, 0.05)
    handle.log(loss=loss.item())
    if step % 40 == 39:
        with torch.no_grad():
            own = [p.clone() for p in net.parameters()]
            for a, p in zip(average, net.parameters(), strict=True):
                p.copy_(a)
            net.eval()
            error = noise_loss(net, 2048).item()
            net.train()
            for o, p in zip(own, net.parameters(), strict=True):
                p.copy_(o)
        print("test", error)
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), flush=True)
handle.detach()
