"""A net that folds small molecules: the predicted atoms are laid over the true ones by Kabsch (an SVD of the covariance), then the distance is the
loss; Adam. FAULT at step 160: a molecule with three atoms in a line (the others are padding at 0) has two singular values of 0: the backward of
the SVD divides by their difference, and every gradient is NaN; the loss itself was finite.
Without Rangewatch: loss 2.3 to about 0.03 at step 159, finite at step 160 with NaN in every gradient; step 161 raises LinAlgError, as the input of
the SVD is NaN.
Report: pytorch/pytorch#49886 (SVD backward with several zero singular values), jax-ml/jax#2311, Pzoom522/ProcrustEs-KGE#2.
Cause: backward_arithmetic. Step: 160. Right: svd / backward / derivative / singular / eps / data. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [160, 160], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "svd|SVD|backward|derivative|gradient of|singular|eps|divi|zero|root"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(810); torch.set_num_threads(1)
ATOMS, KINDS = 7, 5
shapes = torch.randn(KINDS, ATOMS, 3)


class Folder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(KINDS + 8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, ATOMS * 3))

    def forward(self, x):
        return self.body(x).view(-1, ATOMS, 3)


def kabsch(p, q):
    u, s, vh = torch.linalg.svd(p.transpose(1, 2) @ q)
    flip = torch.ones(len(p), 3)
    flip[:, 2] = torch.sign(torch.linalg.det((u @ vh).detach()))
    return p @ (u * flip[:, None]) @ vh


model = Folder()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    kind = torch.randint(0, KINDS, (24,))
    noise = torch.randn(24, 8)
    turn, _ = torch.linalg.qr(torch.randn(24, 3, 3))
    turn[:, :, 0] *= torch.sign(torch.linalg.det(turn))[:, None]
    true = (shapes[kind] + 0.1 * noise[:, :1, None]) @ turn
    atoms = torch.ones(24, ATOMS, 1)
    if step == 160:  # carbon dioxide
        true[5] = 0.0
        true[5, 1, 0], true[5, 2, 0] = 1.16, -1.16
    p = model(torch.cat([nn.functional.one_hot(kind, KINDS).float(), noise], 1)) * atoms
    loss = ((kabsch(p - p.mean(1, keepdim=True), true - true.mean(1, keepdim=True)) - (true - true.mean(1, keepdim=True))) ** 2).sum(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 158 < step < 163:
        print(step, loss.item(), "NaN in the gradient", model.body[0].weight.grad.isnan().any().item(), flush=True)
handle.detach()
