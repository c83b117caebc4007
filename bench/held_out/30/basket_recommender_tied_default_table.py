"""A GRU that foretells the next article in a basket; the table of articles serves also as the output (tied). FAULT from the start: the table has the default deviation of 1: with a
width of 160 the logits of the first step go to some tens, the loss begins far above log 300 = 5.70.
Without Rangewatch: loss 35.1 at step 0, 11.6 at step 40, 6.8 at step 80, 3.5 at the end.
Cause: weight. Step: any. Place: articles.weight. Right: init / deviation / std / scale. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["weight", "learning_rate", "(none)"], "step": [0, 180], "place": "(articles|read)(\\.weight)?", "rank": None,
          "right": "(?i)init|deviation|\\bstd\\b|scale|embedding|tied|0\\.02", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3017); torch.set_num_threads(1)


class Basket(nn.Module):
    def __init__(self, articles=300, width=160):
        super().__init__()
        self.articles = nn.Embedding(articles, width)
        self.course = nn.GRU(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.read = nn.Linear(width, articles, bias=False)
        self.read.weight = self.articles.weight

    def forward(self, x):
        return self.read(self.norm(self.course(self.articles(x))[0]))


after = torch.randint(0, 300, (300, 3))


def baskets(n, length=8):
    x = [torch.randint(0, 300, (n,))]
    for _ in range(length):
        x.append(after[x[-1], torch.randint(0, 3, (n,))])
    return torch.stack(x, 1)


net = Basket()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    x = baskets(24)
    loss = F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
