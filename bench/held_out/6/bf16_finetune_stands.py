"""A language model of two blocks, trained in float32 on one rule, then cast to bfloat16 as a whole and fine-tuned on another with AdamW at 2e-5.
FAULT from step 0 on: an update of 2e-5 is less than half of a bfloat16's last digit at nearly all weights and is rounded away. All stays finite.
Without Rangewatch: loss 8.76 to 8.70 in 250 steps; 2274 of 41120 weights differ from their start after step 0 and 2267 after step 249. (The same in
float32: 8.76 to 6.71, and all weights moved.)
Report: pytorch/ao#1124 (updates below 1e-3 of a weight do nothing in bfloat16), meta-pytorch/torchtune#2254, arXiv 2010.06192.
Cause: optimizer (its updates are rounded away). Step: from 0. Right: weights in float32 / stochastic rounding. Wrong: a lower learning rate,
GradScaler, mask, clip."""
EXPECT = {"cause": ["optimizer"], "step": [0, 200], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "clip"],
          "right": "bfloat16|float32|master|round|stochastic|precision"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(605); torch.set_num_threads(1)
VOCAB = 32


class Block(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(VOCAB, 48), nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, VOCAB)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(jump, n=16, length=16):
    start = torch.randint(0, VOCAB, (n, 1))
    return (start + jump * torch.arange(length + 1)) % VOCAB


model = LM()
pre = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(150):
    ids = batch(3)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    pre.zero_grad()
    loss.backward()
    pre.step()
print("pretrained", loss.item())
model = model.bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
before = {n: p.detach().clone() for n, p in model.named_parameters()}
handle = rangewatch.attach(model, optimizer)
for step in range(250):
    ids = batch(5)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 249:
        moved = sum((p != before[n]).sum().item() for n, p in model.named_parameters())
        print(step, loss.item(), "moved", moved, "of", sum(p.numel() for p in model.parameters()), flush=True)
handle.detach()
