"""A VAE of absorption spectra (40 channels), Adam. FAULT from step 0: a helper `init_weights` draws every linear weight by `nn.init.normal_(w)` with its default std of 1 (meant was 0.02): each layer multiplies its input by some eight.
Without Rangewatch: loss 8.5e8 to 2.3e6 at the end (PyTorch's own start: 5.8 to 0.38).
Cause: weight (initialisation). Step: 0. Right: initialisation / std of the weights. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["weight"], "step": [0, 20], "place": None, "rank": None,
          "right": "(?i)init|std|weight", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(415); torch.set_num_threads(1)
axis = torch.linspace(0, 1, 40)


def spectra(n):
    centre, width = 0.2 + 0.6 * torch.rand(n, 1), 0.05 + 0.1 * torch.rand(n, 1)
    return torch.exp(-((axis - centre) / width) ** 2) + 0.02 * torch.randn(n, 40)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.mu, self.logvar = nn.Linear(64, 4), nn.Linear(64, 4)
        self.dec = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 40))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h).clamp(-8, 8)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


def init_weights(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight)
        nn.init.zeros_(m.bias)


model = VAE()
model.apply(init_weights)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x = spectra(48)
    out, mu, logvar = model(x)
    kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum(1).mean()
    loss = F.mse_loss(out, x, reduction="none").sum(1).mean() + 0.02 * kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 3 or step == 259:
        print(step, loss.item(), "kl", kl.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
