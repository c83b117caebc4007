"""A dense graph convolution net that tells the solubility of made-up molecules, SGD with momentum. FAULT from the start: the gradient is clipped to a norm
of 1e-5 where 1.0 was meant; each step is a hundred-thousandth of what it should be and nothing is learnt.
Without Rangewatch: loss 1.8 at step 0, 1.8 to 3.0 all through, 2.1 at step 199; the norm before the clip is 0.65 to 1.9.
Cause: clip (or learning_rate, as the steps are far too small). Step: any. Right: clip / max_norm / limit. Wrong: GradScaler, attention mask, lower the rate."""
EXPECT = {"cause": ["clip", "learning_rate"], "step": [0, 200], "place": None, "rank": 0,
          "right": "(?i)clip|max_norm|limit", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2507); torch.set_num_threads(1)


class GraphLayer(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.own, self.near = nn.Linear(n_in, n_out), nn.Linear(n_in, n_out, bias=False)

    def forward(self, h, bonds):
        return F.elu(self.own(h) + self.near(bonds @ h))


class Solubility(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList((GraphLayer(7, 64), GraphLayer(64, 64), GraphLayer(64, 64)))
        self.read = nn.Linear(64, 1)

    def forward(self, atoms, bonds):
        for layer in self.layers:
            atoms = layer(atoms, bonds)
        return self.read(atoms.mean(1))[:, 0]


def molecules(n, size=12):
    kind = torch.randint(0, 7, (n, size))
    bonds = (torch.rand(n, size, size) < 0.2).float().triu(1)
    bonds = bonds + bonds.transpose(1, 2)
    polar = (kind < 2).float()
    y = polar.sum(1) / 2 - 1.7 + (polar[:, :, None] * bonds).sum((1, 2)) / 6 - 1.2
    return F.one_hot(kind, 7).float(), bonds / 3, y


net = Solubility()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    atoms, bonds, y = molecules(64)
    loss = F.mse_loss(net(atoms, bonds), y)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1e-5)
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "norm", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
