"""A little decoder-style transformer learns to sort eight digits (causal, next token), AdamW, argparse with a default rate.
FAULT at step 0: the rate is 3e-1 where 3e-4 .. 1e-3 was meant (somebody dropped the zeros): the first steps throw all weights about.
Without Rangewatch: loss 2.46, 3.3, 13.7, 19.1 in steps 0 to 3, 1.6 to 2.2 from 100 on (with 1e-3: 0.22 at 160, 0.14 at 200).
Cause: learning_rate (far too high). Step: from 0. Right: lower the learning rate. Wrong: raise the learning rate, padding mask, zero_grad."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 30], "place": None, "rank": None,
          "right": r"(?i)learning.?rate|\blr\b|step size|warm.?up", "wrong": [r"(?i)raise the learning rate", r"(?i)padding mask", r"(?i)call (optimizer\.)?zero_grad"]}
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=3e-1)
parser.add_argument("--steps", type=int, default=220)
parser.add_argument("--dim", type=int, default=48)
args = parser.parse_args()
torch.manual_seed(12)
torch.set_num_threads(1)
N = 8
SEP = 10


class Block(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.heads = heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln_2(x))


class Sorter(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(11, d), nn.Embedding(2 * N + 1, d)
        self.h = nn.ModuleList([Block(d), Block(d)])
        self.ln_f, self.lm_head = nn.LayerNorm(d), nn.Linear(d, 11, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for b in self.h:
            x = b(x)
        return self.lm_head(self.ln_f(x))


def get_batch(bs=48):
    digits = torch.randint(0, 10, (bs, N))
    seq = torch.cat([digits, torch.full((bs, 1), SEP), digits.sort(1).values], 1)
    x, y = seq[:, :-1], seq[:, 1:].clone()
    y[:, :N] = -100
    return x, y


model = Sorter(args.dim)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
handle = rangewatch.attach(model, optimizer)
for it in range(args.steps):
    x, y = get_batch()
    loss = F.cross_entropy(model(x).reshape(-1, 11), y.reshape(-1), ignore_index=-100)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if it < 5 or it % 20 == 0:
        print(f"iter {it}: loss {loss.item():.4f}", flush=True)
handle.detach()
