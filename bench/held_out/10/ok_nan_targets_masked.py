"""Four assays of molecules by a graph net. Two thirds of the targets are NaN, which means "not measured"; they are left out of the loss with
torch.where before anything is computed, and in some batches an assay has no target at all. HEALTHY.
Without Rangewatch: loss 2.18 to 0.02; the fourth assay has 0 to 5 of 32 targets in a batch, the third 0 to 6."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1031); torch.set_num_threads(1)
ATOMS, KINDS, ASSAYS = 12, 5, 4
effect = torch.randn(KINDS, ASSAYS)


class MoleculeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(KINDS, 32)
        self.message = nn.ModuleList([nn.Linear(64, 32) for _ in range(2)])
        self.assay = nn.Linear(32, ASSAYS)

    def forward(self, kind, bond):
        h = self.kind(kind)
        for layer in self.message:
            h = h + F.relu(layer(torch.cat((h, bond @ h / 3), 2)))
        return self.assay(h.mean(1))


def molecules(n):
    kind = torch.randint(0, KINDS, (n, ATOMS))
    bond = (torch.rand(n, ATOMS, ATOMS) < 0.12).float()
    bond = ((bond + bond.transpose(1, 2)) > 0).float()
    alone = effect[kind]
    y = alone.mean(1) * 2 + (bond @ alone).tanh().mean(1) + 0.1 * torch.randn(n, ASSAYS)
    y[torch.rand(n, ASSAYS) < torch.tensor([0.3, 0.6, 0.9, 0.95])] = float("nan")
    return kind, bond, y


model = MoleculeNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    kind, bond, y = molecules(32)
    measured = ~y.isnan()
    error = model(kind, bond) - torch.where(measured, y, 0.0)
    loss = (error * measured).square().sum() / measured.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "measured of each assay", measured.sum(0).tolist(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
