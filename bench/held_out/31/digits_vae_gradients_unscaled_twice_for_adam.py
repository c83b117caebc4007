"""A VAE of bright strokes (8 x 8) in float32 with a static loss scale of 65536 by hand, kept from the half-precision days: loss * scale, backward, gradients / scale, Adam.
FAULT from step 90: clipping is switched on, and its helper unscales too: the gradients are divided by the scale twice, are about 1e-8 and smaller, Adam's steps are all but zero, learning stands still.
Without Rangewatch: loss 10.9 to 7.1 at step 89, then 6.8 to 7.1 to the end (without the second division 4.6 at step 259); largest gradient 0.08 at step 89, 1e-6 from step 90 on.
Cause: loss_scale (optimizer: Adam's eps). Step: 90. Right: scale / unscale. Wrong: mask, dead units, raise the learning rate."""
EXPECT = {"cause": ["loss_scale"], "step": [89, 130], "place": None, "rank": None,
          "right": "(?i)scal|eps", "wrong": ["attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(109); torch.set_num_threads(1)
SCALE = 65536.0


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, 96), nn.SiLU())
        self.mu, self.logvar = nn.Linear(96, 6), nn.Linear(96, 6)
        self.decode = nn.Sequential(nn.Linear(6, 96), nn.SiLU(), nn.Linear(96, 64))

    def forward(self, x):
        h = self.encode(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + (0.5 * logvar).exp() * torch.randn_like(mu)
        return self.decode(z), -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum(1).mean()


def strokes(n):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij")
    angle, shift = 3.14 * torch.rand(n, 1, 1), torch.rand(n, 1, 1) - 0.5
    return torch.exp(-8 * (xx * angle.cos() + yy * angle.sin() - shift) ** 2).flatten(1)


def unscaled_clip(parameters, most):
    parameters = list(parameters)
    for p in parameters:
        p.grad.div_(SCALE)
    return nn.utils.clip_grad_norm_(parameters, most)


net = Vae()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)
handle = rangewatch.attach(net, optimizer)
for step in range(260):
    x = strokes(64)
    out, kl = net(x)
    loss = (out.sigmoid() - x).square().sum(1).mean() + 0.02 * kl
    optimizer.zero_grad()
    (loss * SCALE).backward()
    for p in net.parameters():
        p.grad.div_(SCALE)
    if step >= 90:
        unscaled_clip(net.parameters(), 100.0)
    optimizer.step()
    if step % 20 == 0 or step in (89, 90, 91, 259):
        print(step, loss.item(), "grad", max(p.grad.abs().max() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
