"""Word-level language model, LayerNorm GPT blocks, output tied to the input embedding. FAULT from step 0: the embedding keeps nn.Embedding's own start, normal
with deviation 1, where 0.02 is usual for a tied one: the first logits are some tens in size and the loss starts at 90 where chance is log(400) = 6;
it falls, but is not yet at chance after 250 steps. Nothing is NaN. Report: pytorch/pytorch#3121 ("it took me many hours to find out why my net did not
train, the values are too high"), allenai/allennlp#1120. Cause: weight (its start), step 0, at the embedding / head. Right: a smaller start. Wrong: mask,
precision, data, a scaler."""
EXPECT = {"cause": ["weight"], "step": [0, 30], "place": "(embed|head|unembed)(\\..*)?", "rank": 0,
          "wrong": ["[Mm]ask", "bfloat16", "GradScaler", "leave out samples"], "right": "initiali|\\bstd\\b|deviation|0\\.02"}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(21)
torch.set_num_threads(1)
V, T, D = 400, 20, 96
follow = torch.randint(0, V, (V, 3))


def text(n=12):
    ids = torch.randint(0, V, (n, 1))
    for _ in range(T):
        ids = torch.cat([ids, follow[ids[:, -1:], torch.randint(0, 3, (n, 1))]], 1)
    return ids


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.ln = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


lm = LM()
opt = torch.optim.AdamW(lm.parameters(), lr=3e-4, betas=(0.9, 0.95))
watch = rangewatch.attach(lm, opt)
for step in range(250):
    ids = text()
    loss = F.cross_entropy(lm(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
    opt.step()
    watch.log(loss=loss.item())
    if step % 25 == 0 or step == 249:
        print(step, round(loss.item(), 3))
