"""A small diffusion model of points on two rings: an MLP that tells the noise, with the level of the noise as Fourier features. FAULT at steps 110 to 112:
the table of rates has 2e-1 in three rows where 2e-3 is meant; Adam takes three steps a hundred times as long, the net is thrown back and starts anew.
Without Rangewatch: loss 1.12 to about 0.4 at step 110, 25 at step 111, 8,450 at step 112, 82,166 at step 113, 38 at the end.
Causes: learning_rate. Right: learning rate. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [109, 116], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|schedul", "wrong": ["GradScaler", "attention mask", "bfloat16"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2318); torch.set_num_threads(1)
keep = torch.cos(torch.linspace(0.02, 1.55, 50)) ** 2
rates = ["2e-3"] * 220
rates[110:113] = ["2e-1"] * 3


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("waves", 2.0 ** torch.arange(6))
        self.enter = nn.Linear(2 + 12, 96)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 96)) for _ in range(3))
        self.leave = nn.Linear(96, 2)

    def forward(self, x, t):
        phase = t[:, None] / 50 * self.waves
        h = self.enter(torch.cat((x, phase.sin(), phase.cos()), 1))
        for block in self.blocks:
            h = h + block(h)
        return self.leave(h)


model = Denoiser()
optimizer = torch.optim.Adam(model.parameters(), lr=float(rates[0]))
handle = rangewatch.attach(model, optimizer)
for step, rate in enumerate(rates):
    optimizer.param_groups[0]["lr"] = float(rate)
    angle, radius = 6.2832 * torch.rand(256), 0.5 + 0.7 * (torch.rand(256) < 0.5)
    x0 = torch.stack((radius * angle.cos(), radius * angle.sin()), 1)
    t = torch.randint(0, 50, (256,))
    noise = torch.randn_like(x0)
    k = keep[t][:, None]
    loss = (model(k.sqrt() * x0 + (1 - k).sqrt() * noise, t) - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 118 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
