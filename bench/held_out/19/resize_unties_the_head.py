"""A language model of chess moves (a GRU) whose head shares its weight with the embedding. FAULT at step 110: eight tokens are added; the function that
resizes makes a new embedding (given to the optimizer) and a new head with a copy of the old rows, but never ties the two again and never gives the
head to the optimizer: from then on the head stands still, and the new tokens, whose rows in it all hold the mean of the old ones, are never told apart.
Without Rangewatch: loss 3.67 to 0.80 at step 109, 2.16 at step 110, 1.2 to 1.5 at steps 160 to 239; with the two tied and held by the optimizer it is 0.84 at
the end.
Cause: optimizer (a parameter that no optimizer holds), weight or no_gradient. Step: 110. Right: tie again / give the head to the optimizer. Wrong: rate,
clip."""
EXPECT = {"cause": ["optimizer", "weight", "no_gradient"], "step": [109, 140], "place": ".*(head|embed).*", "rank": 0,
          "wrong": ["(?i)lower the learning rate", "GradScaler", "(?i)clip_grad_norm_"],
          "right": "(?i)\\bt(ie|ied|ying)\\b|optimizer|param_group|not (held|in|among)|resize|same (weight|parameter|tensor)"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1902); torch.set_num_threads(1)
OLD, NEW = 40, 48


class MoveModel(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(OLD, width)
        nn.init.normal_(self.embed.weight, std=0.3)
        self.read = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, OLD, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.read(self.embed(x))[0])


def resize(model, optimizer, size):
    old = model.embed.weight.detach()
    embed, head = nn.Embedding(size, old.shape[1]), nn.Linear(old.shape[1], size, bias=False)
    with torch.no_grad():
        embed.weight[:len(old)] = old
        head.weight[:len(old)] = old
        embed.weight[len(old):] = old.mean(0)
        head.weight[len(old):] = old.mean(0)
    model.embed, model.head = embed, head
    optimizer.add_param_group({"params": [embed.weight]})


follower = torch.randperm(NEW)


def games(n, size):
    x = torch.randint(0, size, (n, 1))
    for _ in range(12):
        step = follower[x[:, -1:]] % size
        x = torch.cat((x, torch.where(torch.rand(n, 1) < 0.1, torch.randint(0, size, (n, 1)), step)), 1)
    return x


model = MoveModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 110:
        resize(model, optimizer, NEW)
    x = games(32, OLD if step < 110 else NEW)
    logits = model(x[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (109, 110, 239):
        print(step, loss.item(), "shared", model.head.weight is model.embed.weight, flush=True)
    handle.log(loss=loss.item())
handle.detach()
