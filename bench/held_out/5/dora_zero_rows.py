"""DoRA (weight-decomposed low-rank adaptation) of a frozen decoder: magnitude * (W + BA) / ||W + BA||, row by row. FAULT at step 100: the second stage
adapts the output projections of attention too, and that of block 1 has rows that are all zeros in the checkpoint (pruned heads): their norm is 0,
their magnitude 0, and 0 / 0 is NaN in the weight. Without Rangewatch: loss 3.63 to 1.19 at step 99, NaN at step 100 and from there on.
Report: huggingface/peft#2049 (o_proj of Llama-3.1-8B has zero rows: DoRA gives NaN), huggingface/peft#3237, KohakuBlueleaf/LyCORIS#166.
Cause: forward arithmetic in that layer. Place: blocks.1.out. Right: division / norm of zero / eps. Wrong: learning rate, data, mask, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [100, 101], "place": r"blocks\.1\.(out|attention).*|blocks\.1", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "leave out samples", "attention mask"],
          "right": "divi|0 / 0|norm|eps|zero"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(506); torch.set_num_threads(1)
VOCAB, D, T = 32, 32, 16


class DoRALinear(nn.Module):
    def __init__(self, rank=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(D, D) / D ** 0.5, requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(rank, D) / D ** 0.5), nn.Parameter(torch.zeros(D, rank))
        self.magnitude = nn.Parameter(torch.ones(D, 1))
        self.adapted = False

    def adapt(self):
        self.adapted = True
        self.magnitude.data.copy_(self.weight.norm(dim=1, keepdim=True))

    def forward(self, x):
        if not self.adapted:
            return F.linear(x, self.weight)
        w = self.weight + self.b @ self.a
        return F.linear(x, self.magnitude * w / w.norm(dim=1, keepdim=True).detach())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.query, self.key, self.value, self.out = DoRALinear(), DoRALinear(), DoRALinear(), DoRALinear()
        self.norm2, self.mlp = nn.LayerNorm(D), nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (4, 8)).transpose(1, 2) for f in (self.query, self.key, self.value))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCAB, D), nn.Parameter(torch.randn(T, D) * 0.1)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(D, VOCAB)

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids) + self.position))


model = Decoder()
with torch.no_grad():
    model.blocks[1].out.weight[8:16] = 0
for name, p in model.named_parameters():
    p.requires_grad_(name.endswith((".a", ".b", "magnitude")) or name.startswith("head"))
for block in model.blocks:
    for each in (block.query, block.key, block.value):
        each.adapt()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
handle = rangewatch.attach(model, optimizer)
follows = torch.randint(0, VOCAB, (VOCAB, 3))
for step in range(200):
    if step == 100:
        for block in model.blocks:
            block.out.adapt()
    ids = torch.empty(24, T + 1, dtype=torch.long)
    ids[:, 0] = torch.randint(0, VOCAB, (24,))
    for t in range(T):
        ids[:, t + 1] = follows[ids[:, t], (torch.rand(24) * 2.2).long()]
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (99, 100, 101):
        print(step, loss.item(), flush=True)
handle.detach()
