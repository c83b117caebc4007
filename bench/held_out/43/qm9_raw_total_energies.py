"""Total energies of small molecules by a message-passing net with sum pooling (PyG discussion: 'QM9 U0, loss is 1e8 and does not go down').
FAULT at step 0: the targets are raw total energies (some -11000 +- 1100 eV) which are neither standardised nor freed of the atoms' reference energies; the net has first to walk its outputs to -11000.
Without Rangewatch: loss 1.3e8 at step 0, 9e7 at 40, 4e6 at 100, 3e5 at 219; predictions crawl from 1 to -11000 first and overshoot to -13000 at step 60 (standardised: 5.8 to 0.5 by step 20).
Cause: data (target scale). Step: from 0. Right: standardise the targets / subtract the reference. Wrong: GradScaler, attention mask, eval."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [0, 100], "place": None, "rank": None,
          "right": r"(?i)normali[sz]|standardi[sz]|target|scale|label", "wrong": ["GradScaler", r"(?i)attention mask", r"(?i)\.eval\(\)"]}
import torch
from torch import nn
from torch.nn import functional as F
import rangewatch

torch.manual_seed(9); torch.set_num_threads(1)
REF = torch.tensor([-13.6, -1029.8, -1485.3, -2042.6])


def make_batch(graphs=24):
    z, src, dst, batch, y = [], [], [], [], []
    off = 0
    for b in range(graphs):
        n = int(torch.randint(10, 19, (1,)))
        heavy = torch.randint(8, 10, (1,)).item()
        a = torch.zeros(n, dtype=torch.long)
        a[:heavy] = torch.tensor([1, 1, 1, 1, 2, 3])[torch.randint(0, 6, (heavy,))] if heavy <= n else 1
        parent = [int(torch.randint(0, i, (1,))) for i in range(1, n)]
        s = torch.arange(1, n); d = torch.tensor(parent)
        bond = ((a[s] == a[d]).float() * 1.5 - 4.0).sum()
        z.append(a); src += [s + off, d + off]; dst += [d + off, s + off]
        batch.append(torch.full((n,), b)); y.append(REF[a].sum() + bond)
        off += n
    return torch.cat(z), torch.stack([torch.cat(src), torch.cat(dst)]), torch.cat(batch), torch.stack(y)


class GINLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))

    def forward(self, x, edge_index):
        agg = torch.zeros_like(x).index_add_(0, edge_index[1], x[edge_index[0]])
        return x + self.mlp(x + 0.3 * agg)


class Net(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.embedding = nn.Embedding(4, d)
        self.convs = nn.ModuleList([GINLayer(d) for _ in range(3)])
        self.readout = nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, z, edge_index, batch):
        x = self.embedding(z)
        for conv in self.convs:
            x = conv(x, edge_index)
        return torch.zeros(int(batch.max()) + 1).index_add(0, batch, self.readout(x).view(-1))


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
rangewatch.attach(model, optimizer)


def train(step):
    model.train()
    z, edge_index, batch, y = make_batch()
    optimizer.zero_grad()
    pred = model(z, edge_index, batch)
    loss = F.mse_loss(pred, y)
    loss.backward()
    optimizer.step()
    return loss.item(), pred.mean().item(), y.mean().item()


for step in range(220):
    loss, p, t = train(step)
    if step % 20 == 0 or step == 219:
        print(f"Step {step:03d}, Loss: {loss:.1f}, mean prediction {p:.1f}, mean target {t:.1f}", flush=True)
