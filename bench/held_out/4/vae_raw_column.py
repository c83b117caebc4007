"""A VAE of table rows, 12 columns, Gaussian decoder. FAULT at step 130: one file comes without its scaling, column 3 (an income) is in units of
one, up to 120,000, not 0 to 2: mean and log variance of the code are in the ten thousands. Without Rangewatch: loss 77 to 13 at step 129, 1.5e10 at step
130 (KL 3.4e7), 11.7 at step 131, and no more progress from there on, for Adam's second moments hold that one gradient.
Report: AntixK/PyTorch-VAE#16 (KL from 2000 to 2e35 within steps), vanderschaarlab/synthcity#331 (log variances explode, for some data sets).
Cause: data of another scale. Right: scale / look at the batch / clip. Wrong: lower the learning rate, mask, a GradScaler."""
EXPECT = {"cause": ["data"], "step": [130, 131], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "GradScaler"],
          "right": "[Ss]cale|[Nn]ormali|input|batch|clamp|clip|sample"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(8); torch.set_num_threads(1)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.mean, self.logvar = nn.Linear(64, 4), nn.Linear(64, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 12))

    def forward(self, x):
        h = self.encoder(x)
        mean, logvar = self.mean(h), self.logvar(h)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * logvar).exp()), mean, logvar


mix = torch.randn(4, 12)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
watch = rangewatch.attach(model, optimizer)
for step in range(160):
    x = (torch.randn(64, 4) @ mix + 0.1 * torch.randn(64, 12)).sigmoid() * 2
    if step == 130:
        x[:, 3] = x[:, 3] * 60000
    out, mean, logvar = model(x)
    kl = 0.5 * (mean ** 2 + logvar.exp() - logvar - 1).sum(1).mean()
    loss = 5 * F.mse_loss(out, x, reduction="none").sum(1).mean() + kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item(), kl=kl.item())
    if step % 15 == 0 or 128 <= step < 133:
        print(step, round(loss.item(), 4), "kl", round(kl.item(), 4), "logvar", logvar.abs().max().item())
