"""Convolutional VAE, weights in fp16 by .half() with SGD, reconstruction summed in fp16. FAULT from step 100: batches are 8 times
larger (the small-batch warm-up ends): the sum is beyond 65504, the loss is Inf, though the gradients are finite. Cause:
forward_arithmetic (overflow of a sum in the loss), step 100, place: the loss. Right: sum/loss in float32 (or a mean).
Wrong: learning rate, mask, batch bad, weights, 'gradients explode'."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [100, 100], "place": r"(loss|\(loss\)|)", "rank": 0,
          "wrong": ["learning rate", "[Mm]ask", "checkpoint", "leave out samples"], "right": "float32|mean|loss"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class VAE(nn.Module):
    def __init__(self, z=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.ELU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ELU(), nn.Flatten())
        self.mu, self.logvar = nn.Linear(32 * 16, z), nn.Linear(32 * 16, z)
        self.up = nn.Linear(z, 32 * 16)
        self.dec = nn.Sequential(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ELU(), nn.ConvTranspose2d(16, 1, 4, 2, 1))
    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return self.dec(F.elu(self.up(z)).view(-1, 32, 4, 4)), mu, logvar

vae = VAE().half()
opt = torch.optim.SGD(vae.parameters(), lr=2e-6)
watch = rangewatch.attach(vae, opt)
basis = torch.randn(6, 1, 16, 16)
for step in range(200):
    n = 16 if step < 100 else 128
    x = (torch.einsum("bk,kchw->bchw", torch.randn(n, 6), basis)).half()
    rec, mu, logvar = vae(x)
    sse = (rec - x).pow(2).sum()                      # stays in fp16
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()
    loss = sse + kl
    watch.log(loss=loss.item())
    opt.zero_grad()
    loss.backward()
    opt.step()
