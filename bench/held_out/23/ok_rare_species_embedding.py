"""HEALTHY: an embedding of 800 species (Zipf's law: most are seen once or never in 220 steps) with sparse gradients and SparseAdam, the dense layers with a
second optimizer; the abundance is predicted with a Poisson loss, which is below 0 for large counts. Odd to a watcher: rows without gradients, few rows that
move a lot, a negative loss with spikes.
Without Rangewatch: loss 0.96 to -1.7 at step 20, between -2 and -3.8 from step 60 on."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2346); torch.set_num_threads(1)
SPECIES = 800
level = 1.0 + torch.randn(SPECIES)
often = 1.0 / torch.arange(1.0, SPECIES + 1)


class Abundance(nn.Module):
    def __init__(self):
        super().__init__()
        self.species = nn.Embedding(SPECIES, 16, sparse=True)
        self.net = nn.Sequential(nn.Linear(16 + 3, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, species, site):
        return self.net(torch.cat((self.species(species), site), 1))[:, 0]


model = Abundance()
sparse = torch.optim.SparseAdam(model.species.parameters(), lr=2e-2)
optimizer = torch.optim.Adam(model.net.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    species, site = torch.multinomial(often, 64, replacement=True), torch.randn(64, 3)
    count = torch.poisson((level[species] + 0.5 * site[:, 0]).exp())
    loss = nn.functional.poisson_nll_loss(model(species, site), count)
    optimizer.zero_grad()
    sparse.zero_grad()
    loss.backward()
    sparse.step()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
