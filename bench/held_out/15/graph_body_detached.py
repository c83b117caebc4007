"""A graph net for the energy of a molecule. FAULT from the start: the embedding of the body is detached, as it was kept for a plot, and the detached one
is given to the head: no parameter of the body gets a gradient.
Without Rangewatch: loss 1.05 to 0.5 to 0.73 from step 60 to the end, gradients in none of 7 parameters of the body; without the detach it is 0.013 at the end.
Cause: no_gradient. Step: 0. Place: body. Right: detach / no gradient. Wrong: GradScaler, mask, raise the learning rate."""
EXPECT = {"cause": ["no_gradient"], "step": [0, 30], "place": ".*(body).*", "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Rr]aise the learning rate"],
          "right": "detach|no gradient|graph|requires_grad|no_grad|None"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1507); torch.set_num_threads(1)
ATOMS, KINDS = 9, 5
pair_energy = torch.randn(KINDS, KINDS)
pair_energy = pair_energy + pair_energy.t()


class MoleculeBody(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.atom = nn.Embedding(KINDS, width)
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(3))

    def forward(self, kind, bonds):
        h = self.atom(kind)
        for layer in self.layers:
            h = h + torch.tanh(layer(torch.cat((h, bonds @ h), 2)))
        return h.mean(1)


class EnergyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = MoleculeBody()
        self.energy = nn.Linear(24, 1)
        self.cache = None

    def forward(self, kind, bonds):
        self.cache = self.body(kind, bonds).detach()  # kept for the plot of the embeddings
        return self.energy(self.cache)[:, 0]


def molecules(n):
    kind = torch.randint(0, KINDS, (n, ATOMS))
    bonds = torch.triu((torch.rand(n, ATOMS, ATOMS) < 0.25).float(), 1)
    bonds = bonds + bonds.transpose(1, 2)
    return kind, bonds, (bonds * pair_energy[kind[:, :, None], kind[:, None, :]]).sum((1, 2)) / 10


model = EnergyNet()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    kind, bonds, y = molecules(64)
    loss = F.mse_loss(model(kind, bonds), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "gradients in the body", sum(p.grad is not None for p in model.body.parameters()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
