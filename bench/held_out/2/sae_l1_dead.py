"""Sparse autoencoder (ReLU latents) on the activations of another net. FAULT: the L1 penalty's coefficient warms up to 60, where 6e-2 was meant: between step 60 and
200 one latent after another is driven below zero for every input, until some nineteen in twenty are dead: their
rows get no gradient any more, the reconstruction is little more than a bias. Nothing is NaN and the total loss falls smoothly. Report: decoderesearch/SAELens#202 (dead latents), AkihikoWatanabe/paper_notes#5822.
Cause: dead_units, no step, at the latents (`latent` or `encoder`). Right: the penalty, biases, or another start for dead units. Wrong: mask, precision, data."""
EXPECT = {"cause": ["dead_units"], "step": [40, 259], "place": "(latent|encoder)(\\..*)?", "rank": 0,
          "wrong": ["[Mm]ask", "bfloat16", "GradScaler", "leave out samples"], "right": "bias|[Ll]eaky|re-?initiali|L1|penalt|regulari"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(10); torch.set_num_threads(1)
D, LATENTS, STEPS = 32, 128, 260
features = F.normalize(torch.randn(64, D), dim=1)

def activations(n=128):
    weight = torch.rand(n, 64) * (torch.rand(n, 64) < 0.08)
    return weight @ features * 2

class SAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.pre_bias = nn.Parameter(torch.zeros(D))
        self.encoder = nn.Linear(D, LATENTS)
        self.latent = nn.ReLU()
        self.decoder = nn.Linear(LATENTS, D, bias=False)
        with torch.no_grad():
            self.decoder.weight.copy_(F.normalize(self.decoder.weight, dim=0))
            self.encoder.weight.copy_(self.decoder.weight.T); self.encoder.bias.zero_()
    def forward(self, a):
        z = self.latent(self.encoder(a - self.pre_bias))
        return self.decoder(z) + self.pre_bias, z

sae = SAE()
opt = torch.optim.Adam(sae.parameters(), lr=3e-3, betas=(0.9, 0.99))
log = rangewatch.attach(sae, opt)
for step in range(STEPS):
    a = activations()
    rebuilt, z = sae(a)
    coefficient = 60.0 * min(1.0, max(0, step - 40) / 100)
    mse = (rebuilt - a).pow(2).sum(1).mean()
    loss = mse + coefficient * z.sum(1).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    log.log(loss=loss.item())
    if step % 20 == 0:
        print(step, f"loss {loss.item():.4f} mse {mse.item():.4f} alive {(z > 0).any(0).float().mean().item():.2f}")
