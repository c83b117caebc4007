"""Message passing over random molecules (8 atoms, 4 kinds) regresses a made-up energy from the bonds; AdamW, float32.
FAULT from step 0: the second message layer, `hop2.talk`, is initialised with std=150 where 0.15 was meant (a slip in the config's units); its outputs are a thousand times those of `hop1`.
Without Rangewatch: squared error 2.7e7 at step 0, 8e4 at step 90 and 9e4 at step 299, of a variance of about 0.9 (with std=0.15: 39 at step 0, 0.3 at step 90, 0.13 at step 299).
Cause: weight (initialisation). Step: 0, or in the first dozens. Right: the initialisation / the scale of hop2.talk. Wrong: GradScaler, NaN in the data, attention mask."""
EXPECT = {"cause": ["weight"], "step": [0, 150], "place": r"hop2(\.talk)?(\.weight)?", "rank": None,
          "right": r"(?i)initiali[sz]|\binit\b|std|scale of the weight|too large", "wrong": ["GradScaler", "attention mask", "[Mm]issing values"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(77); torch.set_num_threads(1)
STD = {"hop1": 0.15, "hop2": 150.0, "hop3": 0.15}


def molecules(n, atoms=8):
    kind = torch.randint(0, 4, (n, atoms))
    bond = (torch.rand(n, atoms, atoms) < 0.3).float().triu(1)
    bond = bond + bond.transpose(1, 2)
    charge = torch.tensor([-1.0, -0.3, 0.4, 1.2])[kind]
    energy = (bond * charge[:, :, None] * charge[:, None, :]).sum((1, 2)) / 4
    return kind, bond, energy


class Hop(nn.Module):
    def __init__(self, width, std):
        super().__init__()
        self.talk = nn.Linear(width, width)
        self.keep = nn.Linear(width, width)
        nn.init.normal_(self.talk.weight, std=std)

    def forward(self, h, bond):
        return F.silu(self.keep(h) + bond @ self.talk(h))


class Molecule(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.atom = nn.Embedding(4, width)
        self.hop1, self.hop2, self.hop3 = (Hop(width, STD[k]) for k in ("hop1", "hop2", "hop3"))
        self.energy = nn.Linear(width, 1)

    def forward(self, kind, bond):
        h = self.atom(kind)
        for hop in (self.hop1, self.hop2, self.hop3):
            h = hop(h, bond)
        return self.energy(h).sum((1, 2))


model = Molecule()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
handle = rangewatch.attach(model, opt)
for step in range(300):
    kind, bond, energy = molecules(32)
    loss = F.mse_loss(model(kind, bond), energy)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0 or step == 299:
        print(step, "squared error", loss.item(), "of variance", energy.var().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
