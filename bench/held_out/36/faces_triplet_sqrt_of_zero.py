"""Metric learning of identities with a triplet loss: Euclidean distances are written by hand as sqrt(sum of squares), anchors and positives drawn at random. NAdam.
FAULT at step 17: natural, at the first step in which an anchor draws itself as its positive: the distance is exactly 0 there, its loss is fine, but sqrt's slope at 0 is infinite and inf * 0 gives NaN gradients.
Without Rangewatch: loss 0.958 in step 17 (the first with a self-pair, its own loss is finite), NaN from step 18 on.
Cause: backward_arithmetic. Step: 17. Right: add an eps in the sqrt (or clamp). Wrong: lower the learning rate, clip, GradScaler."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [16, 18], "place": None, "rank": None,
          "right": r"(?i)sqrt|\beps|clamp|distance|norm.{0,30}zero", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask", r"(?i)NaN in the (input|data|batch)"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(31)
torch.set_num_threads(1)
PEOPLE, SHOTS, DIM = 12, 400, 96
identity = torch.randn(PEOPLE, DIM)
lighting = torch.randn(DIM, 12)
photos = identity[:, None] + 0.8 * torch.randn(PEOPLE, SHOTS, 12) @ lighting.T + 0.4 * torch.randn(PEOPLE, SHOTS, DIM)
photos = photos / 4


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(DIM, 128), nn.PReLU(), nn.Linear(128, 128), nn.PReLU())
        self.to_embedding = nn.Linear(128, 32)

    def forward(self, x):
        return self.to_embedding(self.trunk(x))


def distance(a, b):
    return torch.sqrt(((a - b) ** 2).sum(dim=-1))


embedder = Embedder()
optimizer = torch.optim.NAdam(embedder.parameters(), lr=1e-3)
handle = rangewatch.attach(embedder, optimizer)
for step in range(260):
    who = torch.randint(0, PEOPLE, (16,))
    other = (who + torch.randint(1, PEOPLE, (16,))) % PEOPLE
    i = torch.randint(0, SHOTS, (16,))
    j = (i + torch.randint(0, SHOTS, (16,))) % SHOTS
    k = torch.randint(0, SHOTS, (16,))
    a, p, n = embedder(photos[who, i]), embedder(photos[who, j]), embedder(photos[other, k])
    d_ap, d_an = distance(a, p), distance(a, n)
    loss = torch.relu(d_ap - d_an + 1.0).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or (i == j).any():
        print(step, "loss", loss.item(), "self-pairs", int((i == j).sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
