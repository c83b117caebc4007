"""A SchNet-like network of energies, of distances between refined places of atoms. FAULT at step 110: one molecule's file has an atom twice. Its
distance is sqrt(0), the basis is fine with that, and the backward of sqrt at 0 is Inf, times 0 is NaN. Forward and loss are finite.
Without Rangewatch: loss 58.8 to 1.54 at step 109, 1.14 at step 110 with a gradient norm of NaN, everything NaN from step 111 on.
Report: pytorch/pytorch#37237, pytorch/pytorch#37154 (NaN in the backward of a distance of 0).
Cause: backward arithmetic. Step: 110. Right: sqrt / norm at 0, eps. Wrong: learning rate, attention mask, GradScaler."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [110, 111], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "sqrt|norm|zero|eps|at 0|clamp"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(608); torch.set_num_threads(1)
ATOMS = 6


class SchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 24)
        self.shift = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))
        self.filter = nn.Sequential(nn.Linear(12, 24), nn.Softplus(), nn.Linear(24, 24))
        self.energy = nn.Sequential(nn.Linear(24, 24), nn.Softplus(), nn.Linear(24, 1))

    def forward(self, kinds, place):
        h = self.embed(kinds)
        place = place + 0.1 * self.shift(h)  # coordinates are refined, as in an equivariant net
        off = ~torch.eye(ATOMS, dtype=torch.bool)
        square = (place[:, :, None] - place[:, None]).pow(2).sum(-1)[:, off]  # without the atom itself
        distance = square.view(-1, ATOMS, ATOMS - 1).sqrt()
        basis = torch.exp(-4 * (distance[..., None] - torch.linspace(0, 4, 12)) ** 2)
        near = h[:, None].expand(-1, ATOMS, -1, -1)[:, off].view(-1, ATOMS, ATOMS - 1, 24)
        h = h + (self.filter(basis) * near).sum(2)
        return self.energy(h).sum((1, 2))


def batch(n=24):
    kinds, place = torch.randint(0, 4, (n, ATOMS)), 1.2 * torch.randn(n, ATOMS, 3)
    distance = torch.cdist(place, place)
    return kinds, place, (torch.exp(-distance).sum((1, 2)) - ATOMS + kinds.float().mean(1))


model = SchNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(170):
    kinds, place, energy = batch()
    if step == 110:
        place[5, 2], kinds[5, 2] = place[5, 1], kinds[5, 1]  # a file in which an atom is written twice
    loss = F.mse_loss(model(kinds, place), energy)
    optimizer.zero_grad()
    loss.backward()
    grad = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    optimizer.step()
    if step % 20 == 0 or step in (109, 110, 111):
        print(step, loss.item(), grad.item(), flush=True)
handle.detach()
