"""A small scVI (a variational autoencoder of gene counts with a negative binomial likelihood) whose library encoder reads the raw counts and whose
rate is exp(library) * softmax. FAULT at step 180: cells of another laboratory, sequenced two hundred times as deep, come: the library encoder says
some hundreds, exp of that is inf in float32, the likelihood NaN.
Without Rangewatch: loss 1799 to 164 at step 179, NaN at step 180 and ever after.
Report: scverse/scvi-tools#727 (mu has invalid values), scverse/scvi-tools#1531 (loc NaN, a data problem), scverse/scvi-tools#446 (library
saturation).
Cause: forward_arithmetic (exp overflow) or data. Step: 180. Right: clamp / log1p / exp / scale of the counts / batch. Wrong: GradScaler, mask, eps."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [180, 182], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "exp|overflow|clamp|log1p|normali|scal|batch|data|input|range"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(703); torch.set_num_threads(1)
GENES = 60
programmes = torch.softmax(torch.randn(5, GENES) * 1.5, 1)


def cells(n, depth):
    rate = programmes[torch.randint(0, 5, (n,))] * depth * torch.exp(0.3 * torch.randn(n, 1))
    return torch.poisson(rate * torch.distributions.Gamma(5.0, 5.0).sample((n, GENES)))


class SCVI(nn.Module):
    def __init__(self):
        super().__init__()
        self.z_encoder = nn.Sequential(nn.Linear(GENES, 48), nn.ReLU(), nn.Linear(48, 16))
        self.l_encoder = nn.Sequential(nn.Linear(GENES, 16), nn.ReLU(), nn.Linear(16, 1))
        self.decoder = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, GENES))
        self.log_theta = nn.Parameter(torch.zeros(GENES))

    def forward(self, x):
        mean, logvar = self.z_encoder(torch.log1p(x)).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        library = self.l_encoder(x / 10)  # raw counts; "/ 10" was enough for our own cells
        mu = torch.exp(library) * torch.softmax(self.decoder(z), -1) + 1e-6
        theta = self.log_theta.exp()
        nll = -(theta * (theta / (theta + mu)).log() + x * (mu / (theta + mu)).log()
                + torch.lgamma(x + theta) - torch.lgamma(theta) - torch.lgamma(x + 1)).sum(-1)
        kl = 0.5 * (mean ** 2 + logvar.exp() - logvar - 1).sum(-1)
        return (nll + kl).mean()


model = SCVI()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x = cells(64, 400.0)
    if step >= 180:
        x[:16] = cells(16, 80000.0)  # the other laboratory
    loss = model(x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or 178 < step < 184:
        print(step, loss.item(), flush=True)
handle.detach()
