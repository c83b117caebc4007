"""Next-item recommendation (SASRec with hand-written attention, left-padded histories, Adam) (RecSys / PyTorch thread: 'NaN from attention with key_padding_mask').
FAULT at step 131: a new user without any history comes into the batch; all keys of the row are padding, masked_fill(-inf) leaves softmax a row of -inf: NaN.
Without Rangewatch: loss 5.7 to 2.3 at step 130, nan at 131 and ever after.
Cause: mask (a row masked in full) / data (empty history). Step: 131. Right: leave out empty rows, keep one key open, a finite fill value. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["mask", "data", "forward_arithmetic"], "step": [130, 133], "place": r"(?i)attn|blocks|out|softmax", "rank": None,
          "right": r"(?i)mask|pad|empty|-inf|row|softmax", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(21); torch.set_num_threads(1)
ITEMS, MAXLEN, DIM = 150, 12, 48
follow = torch.randint(1, ITEMS + 1, (ITEMS + 1, 3))


class Attn(nn.Module):
    def __init__(self, d, h=2):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)

    def forward(self, x, blocked):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-1, -2) / math.sqrt(C // self.h)
        att = att.masked_fill(blocked[:, None, None, :], float("-inf"))
        y = att.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = Attn(d)
        self.ffn = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x, blocked):
        x = x + self.attn(self.n1(x), blocked)
        return x + self.ffn(self.n2(x))


class SASRec(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(ITEMS + 1, DIM, padding_idx=0)
        self.place = nn.Embedding(MAXLEN, DIM)
        self.blocks = nn.ModuleList([Block(DIM), Block(DIM)])
        self.final = nn.LayerNorm(DIM)

    def forward(self, seq):
        x = self.item(seq) + self.place.weight
        for b in self.blocks:
            x = b(x, seq == 0)
        return self.final(x[:, -1]) @ self.item.weight.t() / math.sqrt(DIM)


def users(n, cold=False):
    seq = torch.zeros(n, MAXLEN, dtype=torch.long)
    nxt = torch.empty(n, dtype=torch.long)
    for u in range(n):
        length = int(torch.randint(2, MAXLEN + 1, (1,)))
        cur = int(torch.randint(1, ITEMS + 1, (1,)))
        for t in range(MAXLEN - length, MAXLEN):
            seq[u, t] = cur
            cur = int(follow[cur, int(torch.rand(1).item() ** 3 * 3)])
        nxt[u] = cur
    if cold:
        seq[n // 3] = 0
    return seq, nxt


model = SASRec()
adam = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
w = rangewatch.attach(model, adam)
for step in range(200):
    seq, nxt = users(40, cold=step == 131)
    scores = model(seq)
    loss = nn.functional.cross_entropy(scores, nxt)
    adam.zero_grad()
    loss.backward()
    adam.step()
    w.log(loss=loss.item())
    if step % 20 == 0 or 129 < step < 134:
        print("step", step, "loss %.4f" % loss.item(), flush=True)
w.detach()
