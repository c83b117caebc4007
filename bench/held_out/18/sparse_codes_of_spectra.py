"""A sparse autoencoder with ReLU latents explains the spectra of stars. FAULT at step 82: the L1 penalty on the latents, of weight 0.3, becomes a sum over
the 96 latents instead of their mean ("as in the paper"): it is cheaper to have no latents at all; within some steps nearly all are 0 for each star and get
no gradient any more.
Without Rangewatch: error 0.68 to 0.075 at step 81, 0.50 at step 100, 0.34 at the end; of 96 latents 12 are 0 for all of 2000 stars at step 81, 37 at step
100, 77 at the end.
Cause: dead_units or regularization. Step: 82 to 150. Right: penalty / L1 / sparsity / dead / ReLU. Wrong: GradScaler, mask, float16."""
EXPECT = {"cause": ["dead_units", "regularization"], "step": [81, 160], "place": None, "rank": 0, "least": "info",
          "wrong": ["GradScaler", "attention mask", "float16"],
          "right": "(?i)penalt|L1|spars|dead|relu|regulari[sz]|reinit|decay|bias"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1827); torch.set_num_threads(1)
lines = torch.rand(20, 64) ** 6


class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(64, 96)
        self.latents = nn.ReLU()
        self.decoder = nn.Linear(96, 64)

    def forward(self, x):
        z = self.latents(self.encoder(x))
        return self.decoder(z), z


def stars(n):
    amount = torch.relu(torch.randn(n, 20) - 0.5)
    return amount @ lines + 0.05 * torch.randn(n, 64)


model = Codes()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x = stars(64)
    estimate, z = model(x)
    error = F.mse_loss(estimate, x)
    loss = error + 0.3 * (z.abs().mean() if step < 82 else z.abs().sum(1).mean())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 80 < step < 85 or step == 219:
        with torch.no_grad():
            dead = int((model(stars(2000))[1] == 0).all(0).sum())
        print(step, loss.item(), "error", error.item(), "latents that are 0 for all of 2000 stars", dead, flush=True)
    handle.log(loss=loss.item(), error=error.item())
handle.detach()
