"""A potential of molecules: each atom's energy is summed, the targets are total energies in eV, hundreds below zero, and the loss is the plain
square of the error: it starts at 200,000 with gradients to match. A warm-up of 60 steps, clipping at 10 (all gradients are clipped for a long
time), Adam. HEALTHY.
Without Rangewatch: loss 205860, 8127 at step 20, 82 at step 100, 3 to 29 from step 160 on; the norm of the gradient 460,000 to 500, always above
the bound of 10."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(841); torch.set_num_threads(1)
ELEMENTS, ATOMS = 4, 9
own_energy = -torch.tensor([13.6, 38.0, 54.0, 75.0])


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.elements = nn.Embedding(ELEMENTS, 24)
        self.pair = nn.Sequential(nn.Linear(24 + 10, 48), nn.SiLU(), nn.Linear(48, 24))
        self.atom = nn.Sequential(nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
        self.scale = nn.Embedding(ELEMENTS, 1)
        nn.init.zeros_(self.scale.weight)

    def forward(self, z, at):
        h = self.elements(z)
        d = torch.cdist(at, at)
        rings = torch.exp(-(d[..., None] - torch.linspace(0.5, 4, 10)) ** 2 * 4)
        near = (rings.sum(-1, keepdim=True) > 0.01) & ~torch.eye(ATOMS, dtype=torch.bool)[None, :, :, None]
        m = (self.pair(torch.cat([h[:, None].expand(-1, ATOMS, -1, -1), rings], -1)) * near).sum(2)
        return (10 * self.atom(torch.cat([h, m], -1)) + 100 * self.scale(z)).sum((1, 2))


model = Potential()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 60, 1.0) * 0.5 ** (s / 150))
handle = rangewatch.attach(model, optimizer)
for step in range(340):
    z = torch.randint(0, ELEMENTS, (32, ATOMS))
    at = 1.5 * torch.randn(32, ATOMS, 3)
    bonds = torch.exp(-(torch.cdist(at, at) - 1.4) ** 2 * 3).sum((1, 2)) / 2
    energy = own_energy[z].sum(1) - 4 * bonds
    loss = F.mse_loss(model(z, at), energy)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    scheduler.step()
    handle.log(loss=loss.item(), norm=norm.item())
    if step % 20 == 0 or step == 339:
        print(step, loss.item(), "norm", norm.item(), flush=True)
handle.detach()
