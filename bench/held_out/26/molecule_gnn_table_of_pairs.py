"""A small message-passing net that foretells the energy of random molecules (10 atoms, dense adjacency). FAULT from the start: the readout is squeezed to the
shape (40,), while the loader gives the energies as a column (40, 1): smooth_l1_loss makes a table of 40 by 40, and the net learns the mean.
Without Rangewatch: loss 1.49 at step 0, 1.1 to 1.6 to the end; the true error is 7.97 at the end where the variance is 7.63. With the shapes right it is 0.005.
Cause: data or forward_arithmetic (shapes that are broadcast). Step: any. Right: shape / broadcast / squeeze. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [0, 220], "place": None, "rank": None,
          "right": "(?i)shape|broadcast|squeeze|column|view|reshape", "wrong": ["GradScaler", "attention mask"]}
import warnings
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

warnings.filterwarnings("ignore")
torch.manual_seed(6101); torch.set_num_threads(1)
charge = torch.tensor([0.2, -0.6, 1.0, -0.3])


class Message(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.own, self.near = nn.Linear(d, d), nn.Linear(d, d, bias=False)

    def forward(self, h, adj):
        return h + F.silu(self.own(h) + adj @ self.near(h))


class EnergyNet(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.atom = nn.Embedding(4, d)
        self.rounds = nn.ModuleList(Message(d) for _ in range(2))
        self.readout = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1))

    def forward(self, kind, adj):
        h = self.atom(kind)
        for message in self.rounds:
            h = message(h, adj)
        return self.readout(h).mean(1).squeeze(-1)


def loader(n):
    kind = torch.randint(0, 4, (n, 10))
    bond = (torch.rand(n, 10, 10) < 0.25).float().triu(1)
    bond = bond + bond.transpose(1, 2)
    q = charge[kind]
    energy = torch.einsum("bi,bij,bj->b", q, bond, q) / 2 + q.sum(1)
    return kind, bond / 3, energy[:, None]


net = EnergyNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    kind, adj, energy = loader(40)
    loss = F.smooth_l1_loss(net(kind, adj), energy)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        with torch.no_grad():
            kind, adj, energy = loader(400)
            print(step, loss.item(), "true mse", (net(kind, adj) - energy[:, 0]).square().mean().item(), "variance", energy.var().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
