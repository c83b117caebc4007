"""Siamese embedding of product photos (as 40 numbers each) with the margin-based contrastive loss on Euclidean distances, Adam.
FAULT at step 118: a product uploaded twice gives a positive pair of two identical rows; distance = sqrt(sum(d**2)) is 0 there and its gradient is 0 * inf = NaN. The loss of that step is still finite.
Without Rangewatch: loss 0.50 to about 0.3; 0.2807 at step 118, after which all 8 tensors are NaN; loss NaN from 119 on (with + 1e-12 under the root: 0.3 to the end).
Cause: backward_arithmetic (square root at zero). Step: 118. Right: eps under the square root, squared distance, drop identical pairs.
Wrong: lower the learning rate, clip the gradients, GradScaler."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [117, 120], "place": None, "rank": None,
          "right": r"(?i)sqrt|square root|\beps\b|identical|distance|norm.*(zero|0)", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch

torch.set_num_threads(1)
rng = torch.Generator().manual_seed(909)
torch.manual_seed(909)
N_PRODUCTS, DIM = 300, 40
prototype = torch.randn(N_PRODUCTS, DIM, generator=rng)


def photo(ids):
    return prototype[ids] + 0.45 * torch.randn(len(ids), DIM, generator=rng)


def catalogue(steps, n=48):
    """Yields (left, right, same) in the order of the upload log."""
    for k in range(steps):
        same = torch.rand(n, generator=rng) < 0.5
        a = torch.randint(0, N_PRODUCTS, (n,), generator=rng)
        b = torch.where(same, a, (a + torch.randint(1, N_PRODUCTS, (n,), generator=rng)) % N_PRODUCTS)
        left, right = photo(a), photo(b)
        if k == 118:
            same[17] = True
            right[17] = left[17]
        yield left, right, same.float()


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(DIM, 128)
        self.res = nn.ModuleList([nn.Linear(128, 128) for _ in range(2)])
        self.embed = nn.Linear(128, 16)

    def forward(self, x):
        h = torch.tanh(self.stem(x))
        for layer in self.res:
            h = h + torch.tanh(layer(h))
        return self.embed(h)


tower = Tower()
adam = torch.optim.Adam(tower.parameters(), lr=1e-3)
handle = rangewatch.attach(tower, adam)
MARGIN = 2.0
for step, (left, right, same) in enumerate(catalogue(200)):
    diff = tower(left) - tower(right)
    dist = torch.sqrt((diff ** 2).sum(1))
    loss = (same * dist ** 2 + (1 - same) * torch.relu(MARGIN - dist) ** 2).mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
    if step % 20 == 0 or 116 < step < 121:
        bad = sum(int(p.isnan().any()) for p in tower.parameters())
        print(f"{step:3d} loss {loss.item():.4f}  tensors with NaN: {bad}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
