"""A small NeRF of one ball: density by a ReLU, colour by a sigmoid, alpha compositing over a white background. FAULT from step 0: the density's bias
starts negative (an "unlucky" start), the ReLU gives 0 at every sample, every ray is background, and all gradients through the density are exactly 0: it never trains.
Without Rangewatch: loss 0.09 to 0.15, by the batch; all gradients are 0 at every step; the largest density is 0.
Report: munshisanowarraihan/nerf-meta#1 and #3 ("ReLU will only emit zero values for sigma and optimization will fail", blank video), mip-NeRF E.2
(arXiv 2103.13415), kwea123/nerf_pl#46.
Cause: dead units, at the density. Place: density.* or its activation. Right: softplus / initial bias. Wrong: lower the learning rate, data, GradScaler."""
EXPECT = {"cause": ["dead_units"], "step": [0, 40], "place": r"density.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "leave out samples", "zero_grad"],
          "right": "[Ll]eaky|[Ss]oftplus|GELU|SiLU|bias|init|dead"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(41); torch.set_num_threads(1)


class Field(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(18, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU())
        self.density, self.act, self.colour = nn.Linear(d, 1), nn.ReLU(), nn.Linear(d, 3)
        nn.init.constant_(self.density.bias, -1.0)

    def forward(self, x):
        waves = torch.cat([f for k in range(3) for f in ((x * 2 ** k).sin(), (x * 2 ** k).cos())], -1)
        h = self.trunk(waves)
        return self.act(self.density(h))[..., 0], self.colour(h).sigmoid()


def render(density, colour, dt=0.15):
    alpha = 1 - (-density * dt).exp()
    left = torch.cat([torch.ones_like(alpha[:, :1]), (1 - alpha + 1e-10).cumprod(1)], 1)
    weight = alpha * left[:, :-1]
    return (weight[..., None] * colour).sum(1) + left[:, -1:]


model = Field()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    at = 2.4 * torch.rand(96, 2) - 1.2
    depth = torch.linspace(-1.5, 1.5, 20).expand(96, 20)
    points = torch.cat([at[:, None].expand(96, 20, 2), depth[..., None]], -1)
    with torch.no_grad():
        wanted = render(20.0 * (points.norm(dim=-1) < 0.8).float(), 0.5 + 0.5 * points.clamp(-1, 1))
    density, colour = model(points)
    loss = F.mse_loss(render(density, colour), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0:
        print(step, round(loss.item(), 4), density.max().item(), max(p.grad.abs().max().item() for p in model.parameters()))
