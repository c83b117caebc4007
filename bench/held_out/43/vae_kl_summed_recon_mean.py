"""A VAE on 8x8 digit-like pictures, Adam (thread: 'VAE reconstructs the same blurry image for every input').
FAULT at step 0: the reconstruction term is BCE with reduction 'mean' (over the batch and 64 pixels), the KL term is the SUM over batch and latents; KL outweighs it by thousands and the posterior collapses onto the prior at once.
Without Rangewatch: loss 11.1 to 0.68 which looks fine, but bce stays at 0.62 to 0.65 from step 25 on, spread of mu 0.10 to 0.01, all reconstructions alike (spread 0.03) (with equal reductions: bce 0.21, mu 1.0, recon 0.37).
Cause: forward_arithmetic (reductions of the two terms do not fit). Step: 0 to some 60. Right: the same reduction for both, a weight (beta) on KL, annealing. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["forward_arithmetic", "dead_units"], "step": [0, 120], "place": None, "rank": None,
          "right": r"(?i)\bkl\b|reduction|collapse|beta|anneal|weight of the (loss|term)|loss term|latent", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import torch
import torch.utils.data
from torch import nn, optim
from torch.nn import functional as F
import rangewatch

torch.manual_seed(60); torch.set_num_threads(1)
strokes = (torch.rand(10, 64) < 0.35).float()


class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()
        self.fc1 = nn.Linear(64, 128)
        self.fc21 = nn.Linear(128, 8)
        self.fc22 = nn.Linear(128, 8)
        self.fc3 = nn.Linear(8, 128)
        self.fc4 = nn.Linear(128, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = self.reparameterize(mu, logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x)
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD, BCE, KLD


flip = lambda x: torch.where(torch.rand_like(x) < 0.05, 1 - x, x)
train_loader = torch.utils.data.DataLoader(flip(strokes[torch.randint(0, 10, (3200,))]), batch_size=64, shuffle=True)
model = VAE()
optimizer = optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
n = 0
for epoch in range(6):
    for data in train_loader:
        optimizer.zero_grad()
        recon, mu, logvar = model(data)
        loss, bce, kld = loss_function(recon, data, mu, logvar)
        loss.backward()
        optimizer.step()
        handle.log(loss=loss.item())
        if n % 25 == 0:
            print('step {} loss {:.4f} bce {:.4f} kld {:.5f} spread of mu {:.4f} of recon over the batch {:.4f}'.format(n, loss.item(), bce.item(), kld.item(), mu.std(0).mean().item(), recon.std(0).mean().item()), flush=True)
        n += 1
handle.detach()
