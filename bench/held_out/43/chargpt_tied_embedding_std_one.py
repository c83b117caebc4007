"""A character GPT with tied input and output embedding, AdamW (nanoGPT / minGPT issue: 'initial loss is 60, should it not be ln(vocab)?').
FAULT at step 0: lm_head.weight = wte.weight and nn.Embedding's default normal(0, 1) is kept (no init with std 0.02); with width 96 the logits have a spread of some 13 and the first loss is 16 times ln(48) = 3.87.
Without Rangewatch: loss 64 at step 0, 12 at 25, 4.1 at 50, 2.5 at 199; spread of the logits 13.5 at first (with std 0.02: 3.89, 3.39, 2.93, 2.17).
Cause: weight (tied and initialised with std 1). Step: from 0. Right: init std 0.02, scale the logits by 1/sqrt(d), untie. Wrong: GradScaler, attention mask, raise the rate."""
EXPECT = {"cause": ["weight", "forward_arithmetic"], "step": [0, 60], "place": r"(?i)wte|lm_head|transformer|head|tok", "rank": None,
          "right": r"(?i)init|std|0\.02|scale|tied|tying|logits|smaller weights", "wrong": ["GradScaler", r"(?i)(raise|increase)( the)? learning rate", r"(?i)\.eval\(\)"]}
from dataclasses import dataclass
import torch
import torch.nn as nn
from torch.nn import functional as F
import rangewatch


@dataclass
class GPTConfig:
    block_size: int = 24
    vocab_size: int = 48
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 96


torch.manual_seed(1337); torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.ln_1, self.ln_2 = nn.LayerNorm(c.n_embd), nn.LayerNorm(c.n_embd)
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd)
        self.mlp = nn.Sequential(nn.Linear(c.n_embd, 2 * c.n_embd), nn.GELU(), nn.Linear(2 * c.n_embd, c.n_embd))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (z.view(B, T, self.c.n_head, -1).transpose(1, 2) for z in self.c_attn(self.ln_1(x)).split(C, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(wte=nn.Embedding(c.vocab_size, c.n_embd), wpe=nn.Embedding(c.block_size, c.n_embd), h=nn.ModuleList([Block(c) for _ in range(c.n_layer)]), ln_f=nn.LayerNorm(c.n_embd)))
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, idx, targets):
        x = self.transformer.wte(idx) + self.transformer.wpe.weight[:idx.size(1)]
        for b in self.transformer.h:
            x = b(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


cfg = GPTConfig()
after = torch.softmax(2.5 * torch.randn(cfg.vocab_size, cfg.vocab_size), 1)
text = [0]
noise = torch.rand(8000)
cum = after.cumsum(1)
for u in noise.tolist():
    text.append(min(int(torch.searchsorted(cum[text[-1]], u)), cfg.vocab_size - 1))
data = torch.tensor(text)


def get_batch(bs=8):
    ix = torch.randint(len(data) - cfg.block_size - 1, (bs,)).tolist()
    return torch.stack([data[i:i + cfg.block_size] for i in ix]), torch.stack([data[i + 1:i + 1 + cfg.block_size] for i in ix])


model = GPT(cfg)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
handle = rangewatch.attach(model, optimizer)
for iter_num in range(200):
    X, Y = get_batch()
    logits, loss = model(X, Y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    handle.log(loss=loss.item())
    if iter_num % 25 == 0 or iter_num == 199:
        print(f"iter {iter_num}: loss {loss.item():.4f} spread of logits {logits.std().item():.2f}", flush=True)
handle.detach()
