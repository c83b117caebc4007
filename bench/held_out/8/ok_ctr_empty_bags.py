"""Click-through prediction with hashed features: EmbeddingBag tables with sparse gradients (SparseAdam) beside a dense tower (Adagrad); many bags
are empty (their sum is 0), most rows of a table are never touched, clicks are 5 % of the rows, so that the loss is small from the start. HEALTHY.
Without Rangewatch: loss 0.25 to 0.09 to 0.23, as the share of clicks is 2 to 7 %."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(840); torch.set_num_threads(1)
ROWS = 4000
pull = 1.5 * torch.randn(ROWS)


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.history = nn.EmbeddingBag(ROWS, 12, mode="sum", sparse=True)
        self.query = nn.EmbeddingBag(ROWS, 12, mode="mean", sparse=True)
        for bag in (self.history, self.query):
            nn.init.normal_(bag.weight, std=0.05)
        self.tower = nn.Sequential(nn.Linear(29, 48), nn.ReLU(), nn.Linear(48, 1))
        nn.init.constant_(self.tower[2].bias, -3.4)

    def forward(self, history, offsets, query, query_offsets, dense):
        return self.tower(torch.cat([self.history(history, offsets), self.query(query, query_offsets), dense], 1)).squeeze(1)


def bags(n, most, empty):
    counts = torch.randint(1, most, (n,)) * (torch.rand(n) > empty)
    ids = (ROWS * torch.rand(int(counts.sum())) ** 4).long()
    return ids, torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)[:-1]]), torch.repeat_interleave(torch.arange(n), counts)


model = Clicks()
sparse = torch.optim.SparseAdam([model.history.weight, model.query.weight], lr=5e-3)
dense = torch.optim.Adagrad(model.tower.parameters(), lr=0.03)
handle = rangewatch.attach(model, [sparse, dense])
for step in range(260):
    history, offsets, owner = bags(256, 6, 0.6)
    query, query_offsets, _ = bags(256, 4, 0.3)
    x = torch.randn(256, 5)
    logit = torch.zeros(256).index_add_(0, owner, pull[history]) + 0.8 * x[:, 0] - 4.6
    y = (torch.rand(256) < torch.sigmoid(logit)).float()
    loss = F.binary_cross_entropy_with_logits(model(history, offsets, query, query_offsets, x), y)
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
    handle.log(loss=loss.item())
    if step % 20 == 0:
        print(step, loss.item(), "clicks", y.mean().item(), flush=True)
handle.detach()
