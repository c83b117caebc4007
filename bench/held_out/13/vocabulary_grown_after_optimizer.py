"""A recurrent recommender learns the next article of a shopper's basket. FAULT at step 100: the shop has 40 new articles, and the table of articles is
grown: a new nn.Embedding with the old rows copied takes the old one's place. The optimizer was made before and holds the old table: the new one gets
gradients and never moves.
Without Rangewatch: loss 3.54 to 0.37 at step 99, 5.59 at step 100, 0.67 at the end; the norm of the table stands at 40.7767 from step 100 on.
Variant of: head_is_grown_behind_the_optimizer.
Cause: optimizer. Step: 100. Right: optimizer / add_param_group. Wrong: lower the learning rate, GradScaler, attention mask, data."""
EXPECT = {"cause": ["optimizer"], "step": [99, 150], "place": ".*article.*", "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "optimi[sz]er|param_group|parameters\\(\\)"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1304); torch.set_num_threads(1)
OLD, NEW = 30, 70
habit = torch.randperm(NEW), torch.randperm(NEW)


class Basket(nn.Module):
    def __init__(self):
        super().__init__()
        self.article = nn.Embedding(OLD, 24)
        self.gru = nn.GRU(24, 48, batch_first=True)
        self.back = nn.Linear(48, 24)

    def forward(self, x):
        h = self.back(self.gru(self.article(x))[0])
        return h @ self.article.weight.T  # tied

    def grow(self, articles):
        grown = nn.Embedding(articles, 24)
        with torch.no_grad():
            grown.weight[:len(self.article.weight)] = self.article.weight
        self.article = grown


def baskets(n, articles):
    rows = [torch.randint(0, articles, (n,))]
    for _ in range(9):
        liked = torch.where(torch.rand(n) < 0.8, habit[0][rows[-1]], habit[1][rows[-1]])
        rows.append(liked % articles)
    return torch.stack(rows, 1)


model = Basket()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 100:
        model.grow(NEW)  # the optimizer is not told
    x = baskets(48, OLD if step < 100 else NEW)
    loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (99, 101, 239):
        print(step, loss.item(), "table", model.article.weight.detach().norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
