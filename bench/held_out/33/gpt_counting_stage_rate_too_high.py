"""A small GPT (two causal blocks, pre-norm, tied to nothing) learns to continue counting sequences; a short run of 60 steps with AdamW in two stages. FAULT: the second stage, from step 30 on,
has the rate 0.5 where 5e-4 was meant.
Without Rangewatch: loss 2.8 to 0.64 at step 29; 15 at step 31, 29 at step 32, 58 at step 40, 18 at the end.
Cause: learning_rate. Step: 30. Right: learning rate. Wrong: GradScaler, attention mask, data."""
EXPECT = {"cause": ["learning_rate"], "step": [29, 36], "place": None, "rank": None,
          "right": "(?i)learning.rate|\\blr\\b|rate|schedul", "wrong": ["GradScaler", "attention mask", "NaN in the input", "[Ll]abels"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(337); torch.set_num_threads(1)
V, T, D = 12, 16, 48


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        q, k, v = (t.view(*t.shape[:2], 4, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, x):
        h = self.tok(x) + self.pos.weight
        for b in self.blocks:
            h = b(h)
        return self.head(self.norm(h))


net = GPT()
stages = {0: 2e-3, 30: 0.5}
optimizer = torch.optim.AdamW(net.parameters(), lr=stages[0])
handle = rangewatch.attach(net, optimizer)
for step in range(60):
    if step in stages:
        optimizer.param_groups[0]["lr"] = stages[step]
    start, stride = torch.randint(0, V, (64, 1)), torch.randint(1, 4, (64, 1))
    seq = (start + stride * torch.arange(T + 1)) % V
    loss = F.cross_entropy(net(seq[:, :-1]).flatten(0, 1), seq[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0 or 28 < step < 35 or step == 59:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
