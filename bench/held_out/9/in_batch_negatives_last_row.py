"""Two towers with in-batch negatives and a decoupled loss: the pair itself is taken out of the negatives by a diagonal of -inf. FAULT at step 125: the third
shard has 801 items, its last batch is of one row, which has no negative at all: logsumexp of only -inf is -inf, its gradient NaN.
Without Rangewatch: loss 4.18 to -0.78 at step 124, -inf at step 125, NaN from step 126 on.
Report: rwth-i6/returnn#918 (NaN where the mask hides everything), HobbitLong/SupContrast#50 (mask.sum is 0), jiawei-ren/BalancedMSE#19 (a batch of one),
BerkIGuler/WirelessContrastiveMaskedLearning#7 (the last batch has one sample).
Cause: mask (or data). Step: 125. Right: mask / -inf / batch / drop_last / negatives. Wrong: lower the learning rate, GradScaler, bfloat16."""
EXPECT = {"cause": ["mask", "data"], "step": [125, 126], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "bfloat16"],
          "right": "mask|-inf|softmax|row|batch|drop_last|negative|one (row|item|sample)"}
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rangewatch

torch.manual_seed(816); torch.set_num_threads(1)
TOPICS = 60
topic = torch.randn(TOPICS, 24)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 32))
        self.item = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, q, d):
        return F.normalize(self.query(q), dim=1), F.normalize(self.item(d), dim=1)


def catalogue(n):
    kind = torch.randint(0, TOPICS, (n,))
    return TensorDataset(topic[kind] + 0.7 * torch.randn(n, 24), topic[kind] + 0.7 * torch.randn(n, 24))


model = TwoTowers()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
step = 0
for items in (800, 800, 801, 800):  # 25 batches of 32 an epoch; one item more from the third shard on
    for epoch in range(2):
        for q, d in DataLoader(catalogue(items), batch_size=32, shuffle=True):
            a, b = model(q, d)
            similarity = a @ b.T / 0.1
            positive = similarity.diagonal()
            others = similarity + torch.zeros(len(q), len(q)).fill_diagonal_(float("-inf"))  # decoupled: without the pair itself
            loss = (torch.logsumexp(others, 1) - positive).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0 or 123 < step < 128 or len(q) < 32:
                print(step, loss.item(), "rows", len(q), flush=True)
            handle.log(loss=loss.item())
            step += 1
handle.detach()
