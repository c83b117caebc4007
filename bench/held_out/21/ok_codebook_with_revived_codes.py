"""A vector-quantising autoencoder of small tiles, with a straight-through gradient, a codebook that is no parameter (it follows by a moving mean, under no_grad), and codes that nobody
used for 25 steps set anew to a row of the batch. HEALTHY: odd is that most codes are idle at times, that the codebook has no gradient, and that its rows jump.
Figures: loss 0.58 to 0.061; 13 of 48 codes in use at step 0, 45 to 48 from step 80 on."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2133)
torch.set_num_threads(1)
CODES, D = 48, 12


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(36, 96), nn.GELU(), nn.Linear(96, 2 * D))
        self.decode = nn.Sequential(nn.Linear(2 * D, 96), nn.GELU(), nn.Linear(96, 36))
        self.register_buffer("book", 0.3 * torch.randn(CODES, D))
        self.register_buffer("idle", torch.zeros(CODES))

    def forward(self, x):
        z = self.encode(x).view(-1, D)
        code = torch.cdist(z, self.book).argmin(1)
        q = self.book[code]
        loss = F.mse_loss(z, q)
        if self.training:
            with torch.no_grad():
                one = F.one_hot(code, CODES).float()
                used = one.sum(0)
                mean = one.T @ z / used.clamp(min=1)[:, None]
                self.book += 0.1 * (used > 0)[:, None] * (mean - self.book)
                self.idle = torch.where(used > 0, 0.0, self.idle + 1)
                old = self.idle > 25
                self.book[old] = z[torch.randint(0, len(z), (int(old.sum()),))]
                self.idle[old] = 0
        return self.decode((z + (q - z).detach()).view(len(x), -1)), 0.25 * loss, code


def tiles(n):
    grid = torch.linspace(-1, 1, 6)
    a, b, c = torch.randint(-2, 3, (3, n, 1, 1)).float()
    return torch.tanh(a * grid[:, None] + b * grid + c / 2).flatten(1) + 0.05 * torch.randn(n, 36)


model = Quantised()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x = tiles(96)
    y, commit, code = model(x)
    loss = F.mse_loss(y, x) + commit
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 239:
        print(step, loss.item(), "codes in use", len(code.unique()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
