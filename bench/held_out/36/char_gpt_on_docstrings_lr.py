"""A two-block post-norm GPT learns characters from PyTorch's own docstrings; AdamW, no warm-up.
FAULT at step 0: natural. lr=0.03 was copied from an SGD recipe; that is some 30 times too much for AdamW on a transformer without warm-up.
Without Rangewatch: loss 4.7 to 3.3 at iteration 25 and 3.2 to 3.5 from there to the end (single-character statistics); with lr=1e-3 it is at 2.45 at iteration 199 and still falls.
Cause: learning_rate. Step: 0 to 150. Right: lower lr / warm-up. Wrong: GradScaler, zero_grad, bad rows in the data."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)(lower|reduce|smaller|decrease).{0,40}(learning rate|\blr\b)|warm-?up|learning rate.{0,30}(too (high|large|big)|lower)",
          "wrong": ["GradScaler", r"(?i)call .{0,20}zero_grad", r"(?i)raise the learning rate|higher learning rate"]}
import torch
import torch.nn as nn
import torch.nn.functional as F

import rangewatch

torch.manual_seed(1337)
torch.set_num_threads(1)

text = "".join(m.__doc__ or "" for m in (nn.LSTM, nn.Transformer, nn.Conv2d, nn.CrossEntropyLoss, nn.Embedding, nn.BatchNorm2d))
vocab = sorted(set(text))
data = torch.tensor([vocab.index(c) for c in text])
BLOCK, BATCH, DIM = 48, 16, 64


def get_batch():
    at = torch.randint(len(data) - BLOCK - 1, (BATCH,))
    return torch.stack([data[i:i + BLOCK] for i in at]), torch.stack([data[i + 1:i + BLOCK + 1] for i in at])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.ln_1, self.ln_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, 4, C // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = self.ln_1(x + self.proj(y))
        return self.ln_2(x + self.mlp(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(vocab), DIM), nn.Embedding(BLOCK, DIM)
        self.h = nn.ModuleList([Block(), Block()])
        self.lm_head = nn.Linear(DIM, len(vocab), bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe.weight
        for block in self.h:
            x = block(x)
        return self.lm_head(x)


gpt = GPT()
optimizer = torch.optim.AdamW(gpt.parameters(), lr=3e-2, weight_decay=0.1)
handle = rangewatch.attach(gpt, optimizer)
for it in range(200):
    xb, yb = get_batch()
    loss = F.cross_entropy(gpt(xb).flatten(0, 1), yb.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if it % 25 == 0 or it == 199:
        print(f"iter {it}: loss {loss.item():.3f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
