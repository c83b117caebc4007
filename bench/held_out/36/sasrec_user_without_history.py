"""A sequential recommender (self-attention over the last 12 items, left-padded with item 0) on synthetic sessions, trained with cross entropy over all items, Adam with betas=(0.9, 0.98).
FAULT at step 121: natural in kind. Users are served from old to new accounts; from step 121 on a batch holds a user with no history at all: his row is padding only, the key padding mask is True everywhere, and softmax over -inf alone is NaN.
Without Rangewatch: loss 4.43 to 0.47 at step 120, NaN from step 121 on.
Cause: mask. Step: 121. Right: a fully masked row; keep one key visible / drop empty histories. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["mask"], "step": [120, 123], "place": r"attn(\..+)?", "rank": None,
          "right": r"(?i)mask|padding|empty", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip the grad", r"(?i)initiali[sz]ation"]}
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(12)
torch.set_num_threads(1)
ITEMS, LENGTH, DIM = 60, 12, 48
follow = torch.stack([torch.randperm(ITEMS) for _ in range(2)]) + 1


def sessions(n, newest):
    """Rows of item ids (0 = padding, on the left) and the next item."""
    seq = torch.zeros(n, LENGTH + 1, dtype=torch.long)
    seq[:, 0] = torch.randint(1, ITEMS + 1, (n,))
    for t in range(1, LENGTH + 1):
        seq[:, t] = follow[(torch.rand(n) < 0.15).long(), seq[:, t - 1] - 1]
    history, label = seq[:, :-1].clone(), seq[:, -1]
    seen = torch.randint(2, LENGTH + 1, (n,))
    if newest:
        seen[torch.randint(0, n, (1,))] = 0
    history[torch.arange(LENGTH)[None] < (LENGTH - seen)[:, None]] = 0
    return history, label


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, is_pad):
        q, k, v = (f(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(is_pad[:, None, None], float("-inf"))
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class SASRec(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(ITEMS + 1, DIM, padding_idx=0)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, DIM))
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = Attention(DIM, 2)
        self.ffn = nn.Sequential(nn.Linear(DIM, 96), nn.SiLU(), nn.Linear(96, DIM))
        self.score = nn.Linear(DIM, ITEMS + 1)

    def forward(self, history):
        x = self.item(history) + self.position
        x = x + self.attn(self.norm1(x), history == 0)
        x = x + self.ffn(self.norm2(x))
        return self.score(x[:, -1])


net = SASRec()
adam = torch.optim.Adam(net.parameters(), lr=3e-3, betas=(0.9, 0.98))
handle = rangewatch.attach(net, adam)
for step in range(220):
    history, label = sessions(64, newest=step >= 121)
    loss = F.cross_entropy(net(history), label)
    adam.zero_grad()
    loss.backward()
    adam.step()
    if step % 20 == 0 or 118 < step < 124:
        print("step", step, "ce", loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
