"""Healthy: a bag of hashed words finds the subject of a question. Odd: the table has 20,000 rows of which only some 400 ever come up (the hash space is
wide), its gradients are sparse and it has SparseAdam; all other rows never move. Without Rangewatch: loss 1.80 to 0.6-0.7."""
EXPECT = {"healthy": True, "cause": [], "step": [0, 0], "place": None, "rank": 0, "wrong": [], "right": ""}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1935); torch.set_num_threads(1)
ROWS, SUBJECTS = 20000, 6
seen = torch.randint(0, ROWS, (400,))
subject_of = torch.randint(0, SUBJECTS, (400,))


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, 24, mode="mean", sparse=True)
        self.subject = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, SUBJECTS))

    def forward(self, x):
        return self.subject(self.bag(x))


model = Bag()
sparse = torch.optim.SparseAdam(model.bag.parameters(), lr=2e-2)
dense = torch.optim.Adam(model.subject.parameters(), lr=3e-3)
handle = rangewatch.attach(model, dense)
for step in range(200):
    words = torch.randint(0, 400, (48, 7))
    y = F.one_hot(subject_of[words], SUBJECTS).sum(1).argmax(1)
    loss = F.cross_entropy(model(seen[words]), y)
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
