"""HEALTHY: skip-gram with negative sampling over Zipf-distributed words: sparse embeddings under SparseAdam, a small projection under Adam, two
optimizers that step together; most rows of a gradient are absent, rare words are never seen, one group's rate is halved at step 150; 300 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
V, D = 3000, 32

class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.context = nn.Embedding(V, D, sparse=True), nn.Embedding(V, D, sparse=True)
        self.project = nn.Sequential(nn.Linear(D, D), nn.Tanh())
        nn.init.uniform_(self.word.weight, -0.5 / D, 0.5 / D)
        nn.init.zeros_(self.context.weight)
    def forward(self, w, c, n):
        h = self.project(self.word(w))
        return (h * self.context(c)).sum(-1), (self.context(n) @ h[..., None]).squeeze(-1)

net = SkipGram()
sparse = torch.optim.SparseAdam([net.word.weight, net.context.weight], 5e-3)
dense = torch.optim.Adam(net.project.parameters(), 1e-3)
watch = rangewatch.attach(net, [sparse, dense])
zipf = 1 / torch.arange(1, V + 1).float()
for step in range(300):
    if step == 150:
        sparse.param_groups[0]["lr"] *= 0.5
    w = torch.multinomial(zipf, 128, replacement=True)
    c = (w + torch.randint(1, 6, (128,)) * 7) % V
    positive, negative = net(w, c, torch.multinomial(zipf.sqrt(), 128 * 5, replacement=True).view(128, 5))
    loss = -(F.logsigmoid(positive).mean() + F.logsigmoid(-negative).sum(1).mean())
    sparse.zero_grad(); dense.zero_grad()
    loss.backward()
    sparse.step(); dense.step()
    watch.log(loss=loss.item())
    if step % 25 == 0:
        print(step, loss.item())
