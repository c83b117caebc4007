"""A GRU that folds short chains; the prediction is turned onto the structure by Kabsch's method (SVD of the covariance) within the loss. FAULT at step 160:
of one structure a single residue was resolved; its covariance is 0, the three singular values are equal, the forward pass is finite, the backward of
the SVD divides 0 by 0: NaN gradients.
Without Rangewatch: loss 7.56 to 0.023 at step 159, 0.024 (finite) at step 160 with a gradient norm of NaN, NaN from step 161 on.
Report: pytorch/pytorch#49886 (backward of SVD with several singular values of 0), jax-ml/jax#2311, naver/roma#6, Pzoom522/ProcrustEs-KGE#2.
Cause: backward_arithmetic. Step: 160. Right: svd / singular values / gradient / backward / eps. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [160, 161], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "svd|gradient of|derivative|backward|singular|eigen|degenerate|divi|zero|eps|norm"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(808); torch.set_num_threads(1)
LENGTH = 20
letters = torch.randn(8, 3)


class Folder(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(8, 32)
        self.rnn = nn.GRU(32, 48, batch_first=True, bidirectional=True)
        self.place = nn.Linear(96, 3)

    def forward(self, sequence):
        return self.place(self.rnn(self.letter(sequence))[0]).cumsum(1)


def aligned(x, y, seen):
    """x turned and moved onto y by Kabsch's method, over the residues that were seen."""
    count = seen.sum(1, keepdim=True)[..., None]
    x = (x - (x * seen[..., None]).sum(1, keepdim=True) / count) * seen[..., None]
    y = (y - (y * seen[..., None]).sum(1, keepdim=True) / count) * seen[..., None]
    u, _, vh = torch.linalg.svd(torch.nan_to_num(x.transpose(1, 2) @ y))
    turn = u @ vh
    return x @ turn, y


model = Folder()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(230):
    sequence = torch.randint(0, 8, (24, LENGTH))
    chain = (letters[sequence] + 0.05 * torch.randn(24, LENGTH, 3)).cumsum(1)
    chain = chain @ torch.linalg.qr(torch.randn(24, 3, 3))[0]  # as the experiment had it
    seen = (torch.rand(24, LENGTH) > 0.2).float()
    if step == 160:
        seen[5] = 0.0
        seen[5, 7] = 1.0  # of this one a single residue was resolved
    x, y = aligned(model(sequence), chain, seen)
    loss = (((x - y) ** 2).sum(2) * seen).sum() / seen.sum()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    if step % 20 == 0 or step in (159, 160, 161) or step == 229:
        print(step, loss.item(), "gradient norm", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
