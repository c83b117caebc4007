"""Decoder-only chat model with its own attention: boolean causal mask and padding mask, both filled with -Inf. FAULT from step 130: the
collator changes from packed rows to left-padded ones; a pad token's query has then no key left, softmax of all -Inf is NaN, and it
spreads though the loss leaves pads out. Report: hyunwoongko/transformer#40, huggingface/transformers#27114 and #26421.
Cause: mask, step 130, place blocks.0.attn. Right: the mask / rows with all masked. Wrong: learning rate, bf16, GradScaler, checkpoint."""
EXPECT = {"cause": ["mask"], "step": [130, 130], "place": r"blocks\.0\.attn.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "bfloat16", "GradScaler", "checkpoint"], "right": "[Mm]ask|softmax"}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
V, D, T, PAD = 50, 48, 20, 0

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
    def forward(self, x, keep):
        q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        causal = torch.ones(T, T, dtype=torch.bool).tril()
        scores = scores.masked_fill(~causal, float("-inf")).masked_fill(~keep[:, None, None], float("-inf"))
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2, self.attn = nn.LayerNorm(D), nn.LayerNorm(D), Attention()
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))
    def forward(self, x, keep):
        x = x + self.attn(self.ln1(x), keep)
        return x + self.mlp(self.ln2(x))

class Chat(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.ln, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(T))
        for block in self.blocks:
            x = block(x, ids != PAD)
        return self.head(self.ln(x))

net = Chat()
opt = torch.optim.AdamW(net.parameters(), 1e-3)
watch = rangewatch.attach(net, opt)
chain = torch.softmax(3 * torch.randn(V - 1, V - 1), 1)
for step in range(220):
    seq = [torch.randint(0, V - 1, (16,))]
    for _ in range(T):
        seq.append(torch.multinomial(chain[seq[-1]], 1).squeeze(1))
    text = torch.stack(seq, 1) + 1
    if step >= 130:
        for row, pads in zip(text, torch.randint(0, 8, (16,))):
            row[:pads] = PAD
    ids, labels = text[:, :-1], text[:, 1:]
    loss = F.cross_entropy(net(ids).flatten(0, 1), labels.flatten(), ignore_index=PAD)
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    watch.log(loss=loss.item())
    if step % 10 == 0:
        print(step, loss.item())
