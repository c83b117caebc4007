"""Energies of small random molecules (graph net with hand-written mean aggregation over neighbours, index_add), NAdam.
FAULT at step 89: a salt comes in the data, an ion without any bond; its degree is 0 and sum / degree is 0/0 = NaN.
Without Rangewatch: mse 8.9 to 0.2 at step 40 and 0.2 to 0.6 up to 88, NaN at 89 and ever after.
Cause: forward_arithmetic (division by degree zero) / data (isolated node). Step: 89. Right: clamp the degree to 1, self loops. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [88, 91], "place": r"(mp_layers|mp_layers\.0)(\..*)?", "rank": None,
          "right": r"(?i)degree|divi|isolated|neighbou?r|zero|0 ?/ ?0|input|forward", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(66); torch.set_num_threads(1)
ELEMENTS = 6
charge = torch.linspace(-1, 1, ELEMENTS)


def molecule(atoms):
    z = torch.randint(0, ELEMENTS, (atoms,))
    parent = [int(torch.randint(0, i, (1,))) for i in range(1, atoms)]
    bonds = torch.tensor([list(range(1, atoms)), parent])
    return z, torch.cat([bonds, bonds.flip(0)], 1)


def batch_of(graphs):
    zs, edges, owner, shift = [], [], [], 0
    for g, (z, e) in enumerate(graphs):
        zs.append(z); edges.append(e + shift); owner += [g] * len(z); shift += len(z)
    z, e, owner = torch.cat(zs), torch.cat(edges, 1), torch.tensor(owner)
    energy = torch.zeros(len(graphs)).index_add(0, owner[e[0]], charge[z[e[0]]] * charge[z[e[1]]])
    return z, e, owner, energy


class MeanMessage(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.self_lin, self.nbr_lin = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, h, edge_index):
        src, dst = edge_index
        total = torch.zeros_like(h).index_add(0, dst, h[src])
        degree = torch.zeros(len(h)).index_add(0, dst, torch.ones(len(dst)))
        mean = total / degree[:, None]
        return torch.relu(self.self_lin(h) + self.nbr_lin(mean)) * 1.0 + h


class EnergyGNN(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.atom = nn.Embedding(ELEMENTS, d)
        self.mp_layers = nn.ModuleList(MeanMessage(d) for _ in range(3))
        self.per_atom = nn.Sequential(nn.Linear(d, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, z, edge_index, owner, n):
        h = self.atom(z)
        for mp in self.mp_layers:
            h = mp(h, edge_index)
        return torch.zeros(n).index_add(0, owner, self.per_atom(h)[:, 0])


gnn = EnergyGNN()
opt = torch.optim.NAdam(gnn.parameters(), lr=2e-3)
handle = rangewatch.attach(gnn, opt)
for step in range(160):
    mols = [molecule(int(torch.randint(4, 10, (1,)))) for _ in range(16)]
    if step == 89:
        z, e = mols[5]
        mols[5] = (torch.cat([z, torch.tensor([3])]), e)
    z, e, owner, energy = batch_of(mols)
    loss = nn.functional.mse_loss(gnn(z, e, owner, len(mols)), energy)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or 87 < step < 92:
        print(step, "mse", round(loss.item(), 4), flush=True)
    handle.log(loss=loss.item())
handle.detach()
