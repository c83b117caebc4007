"""A small language model (attention, tied embedding and head) over 40 syllables. FAULT at step 100: the vocabulary grows to 56. The resize makes a new table, which is
tied to nothing: the head becomes a Linear of its own with a copy of the rows. The table is given to the optimizer, the head is not: it stands still from
then on, and the 16 new syllables keep the random rows of their birth.
Without Rangewatch: loss 3.94 to 2.11 at step 99, 4.75 at step 100, 0.53 at step 229; the head has moved by exactly 0 (given to the optimizer: 0.31).
Causes: optimizer (a parameter it does not have), weight. Right: tie again after the resize / give the optimizer the head. Wrong: the rate, GradScaler, mask."""
EXPECT = {"cause": ["optimizer"], "step": [99, 229], "place": "head.*", "rank": 0,
          "right": "(?i)optimizer|param_group|\\btie", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2220); torch.set_num_threads(1)


class Rhymes(nn.Module):
    def __init__(self, words=40, width=48):
        super().__init__()
        self.table, self.spot = nn.Embedding(words, width), nn.Embedding(16, width)
        nn.init.normal_(self.table.weight, std=0.1)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        h = self.table(x) + self.spot.weight[: x.shape[1]]
        z = self.norm(h)
        q, k, v = (f(z).unflatten(2, (4, 12)).transpose(1, 2) for f in (self.q, self.k, self.v))
        h = h + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return self.head(self.last(h + self.mlp(h)))

    def resize(self, words):
        old = self.table.weight.detach()
        self.table = nn.Embedding(words, old.shape[1])
        self.head = nn.Linear(old.shape[1], words, bias=False)
        with torch.no_grad():
            nn.init.normal_(self.table.weight, std=0.1)
            self.table.weight[: len(old)] = old
            self.head.weight[: len(old)] = old


model = Rhymes()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
handle = rangewatch.attach(model, optimizer)
words = 40
for step in range(230):
    if step == 100:
        words = 56
        model.resize(words)
        optimizer.add_param_group({"params": [model.table.weight]})
        birth = model.head.weight.detach().clone()
    seq = [torch.randint(0, words, (24,)), torch.randint(0, words, (24,))]
    for _ in range(14):
        seq.append((seq[-2] * 3 + 7) % words)
    seq = torch.stack(seq, 1)
    loss = F.cross_entropy(model(seq[:, :-1]).flatten(0, 1), seq[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step in (99, 229):
        print(step, loss.item(), "" if step < 100 else f"head moved {(model.head.weight - birth).abs().max().item()}", flush=True)
handle.detach()
