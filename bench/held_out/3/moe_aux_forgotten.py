"""A small language model with a mixture of eight experts (top 1), everything in bfloat16. FAULT from step 0: the load balancing loss is computed and
returned, and the training loop does not add it: the router sends all to few experts, the others get no token and no gradient. The hidden states share
a large mean, as those of a trained model do. Without Rangewatch: loss 4.33 to 0.99 at step 180; from step 20 on two of the eight experts have 95 %
of the tokens and four have none (with 0.05 times the balancing loss added, all eight have between 5 and 22 %).
Changed after a first run, before any with Rangewatch: the next token follows from one token and not from two (it was not learnt in 200 steps), and
the shared mean (without it the load stayed even).
Report: jingyaogong/minimind#140 (the auxiliary loss of the experts is computed and not used), lucidrains/mixture-of-experts#10.
Cause: dead experts by a router that has collapsed. Place: router or experts. Right: add the balancing loss / router / experts without tokens.
Wrong: lower the learning rate, loss scale, mask, data."""
EXPECT = {"cause": ["dead_units"], "step": [0, 199], "place": "(.*\\.)?(moe|router|experts).*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "GradScaler", "loss scale", "leave out samples"],
          "right": "rout|expert|balanc|auxiliary|aux|token"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(27); torch.set_num_threads(1)
VOCAB, N = 64, 16


class MoE(nn.Module):
    def __init__(self, d, experts=8):
        super().__init__()
        self.router = nn.Linear(d, experts, bias=False)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, d)) for _ in range(experts)])

    def forward(self, x):
        flat = x.flatten(0, 1)
        p = self.router(flat).softmax(-1)
        weight, chosen = p.max(-1)
        out = torch.zeros_like(flat)
        for k, expert in enumerate(self.experts):
            rows = (chosen == k).nonzero().flatten()
            if len(rows):
                out = out.index_add(0, rows, expert(flat[rows]) * weight[rows, None])
        self.load = torch.bincount(chosen, minlength=len(self.experts)).float() / len(chosen)
        return out.view_as(x), len(self.experts) * (self.load * p.mean(0)).sum()


class Model(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Parameter(5 * torch.randn(d) + 0.1 * torch.randn(N, d))
        self.norm1, self.attn, self.norm2, self.moe = nn.LayerNorm(d), nn.MultiheadAttention(d, 4, batch_first=True), nn.LayerNorm(d), MoE(d)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, VOCAB)
        self.register_buffer("mask", torch.ones(N, N, dtype=torch.bool).triu(1))

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        h = self.norm1(x)
        x = x + self.attn(h, h, h, attn_mask=self.mask, need_weights=False)[0]
        out, aux = self.moe(self.norm2(x))
        return self.head(self.norm(x + out)), aux


model = Model().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
watch = rangewatch.attach(model, optimizer)
rule = torch.randperm(VOCAB)
for step in range(200):
    ids = torch.randint(0, VOCAB, (16, N + 1))
    for n in range(2, N + 1):
        ids[:, n] = torch.where(torch.rand(16) < 0.9, rule[ids[:, n - 1]], ids[:, n])
    logits, aux = model(ids[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0:
        print(step, round(loss.item(), 4), "aux", round(aux.item(), 2), "load", [round(x, 2) for x in model.moe.load.tolist()])
