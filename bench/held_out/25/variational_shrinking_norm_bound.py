"""A variational autoencoder of ring-shaped pictures; the bound of the gradient's norm is lowered in a line over the training. FAULT from step 141 on: it
was laid out for 140 steps and falls below zero: clip_grad_norm_ multiplies the gradient by a negative number, and the net climbs up the loss.
Without Rangewatch: loss 142 to 68.3 at step 140, 67 at step 155, 79 at step 160, 170 at step 170, 615 at step 180, 7119 at the end; the bound is
-0.36 at step 150.
Cause: clip. Step: 141 and after. Right: clip / max_norm / negative. Wrong: GradScaler, attention mask, bfloat16."""
EXPECT = {"cause": ["clip"], "step": [140, 175], "place": None, "rank": 0,
          "right": "(?i)clip|max_norm|negative|bound|limit", "wrong": ["GradScaler", "attention mask", "bfloat16"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2519); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.linspace(-1, 1, 14), torch.linspace(-1, 1, 14), indexing="ij")


class Rings(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(196, 128), nn.Softplus(), nn.Linear(128, 12))
        self.dec = nn.Sequential(nn.Linear(6, 128), nn.Softplus(), nn.Linear(128, 196))

    def forward(self, x):
        mean, logvar = self.enc(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        kl = 0.5 * (mean ** 2 + logvar.exp() - 1 - logvar).sum(1).mean()
        return self.dec(z), kl


net = Rings()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    cx, cy, r = 0.4 * torch.randn(3, 64, 1, 1)
    x = torch.exp(-40 * (((xx - cx) ** 2 + (yy - cy) ** 2).sqrt() - 0.5 - 0.3 * r) ** 2).flatten(1)
    seen, kl = net(x)
    loss = F.binary_cross_entropy_with_logits(seen, x, reduction="none").sum(1).mean() + kl
    optimizer.zero_grad()
    loss.backward()
    bound = 5.0 * (1 - step / 140)
    nn.utils.clip_grad_norm_(net.parameters(), bound)
    optimizer.step()
    if step % 20 == 0 or step in (145, 150, 155, 170, 199):
        print(step, loss.item(), "bound", bound, flush=True)
    handle.log(loss=loss.item(), kl=kl.item())
handle.detach()
