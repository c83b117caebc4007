"""A mixture-of-depths language model: in each second block a router picks the quarter of tokens that pass the block, the others go round it. FAULT
from step 0: only the indices of topk are used; the block's output is not multiplied by the router's weight, so that no gradient reaches the routers
and they stay as they were drawn. Without Rangewatch: loss 3.7 to 0.56; the gradient of both routers is None at every step and their weights do not
move.
Report: astramind-ai/Mixture-of-depths#10 (is it trainable end to end, with topK and a threshold? by the multiplication alone),
sramshetty/mixture-of-depths#3.
Cause: parameters that the loss does not reach, which the optimizer's name also covers. Place: a router. Right: graph / reach / no gradient /
multiply / detach. Wrong: learning rate, data, precision."""
EXPECT = {"cause": ["optimizer"], "step": [0, 60], "place": r"blocks\.\d\.router.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Rr]aise the learning rate", "GradScaler", "bfloat16", "leave out samples"],
          "right": "detach|no_grad|graph|reach|gradient|used"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(516); torch.set_num_threads(1)
VOCAB, D, T = 36, 40, 32


class Block(nn.Module):
    def __init__(self, routed):
        super().__init__()
        self.norm1, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.norm2, self.mlp = nn.LayerNorm(D), nn.Sequential(nn.Linear(D, 96), nn.GELU(), nn.Linear(96, D))
        self.router = nn.Linear(D, 1, bias=False) if routed else None

    def inner(self, x):
        q, k, v = (each.unflatten(-1, (4, 10)).transpose(1, 2) for each in self.qkv(self.norm1(x)).chunk(3, -1))
        a = self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return a + self.mlp(self.norm2(x + a))

    def forward(self, x):
        if self.router is None:
            return x + self.inner(x)
        at = self.router(x).squeeze(-1).topk(T // 4, dim=1).indices.sort(1).values.unsqueeze(-1).expand(-1, -1, D)
        return x.scatter_add(1, at, self.inner(x.gather(1, at)))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCAB, D), nn.Parameter(0.1 * torch.randn(T, D))
        self.blocks, self.norm, self.head = nn.Sequential(*[Block(i % 2 == 1) for i in range(4)]), nn.LayerNorm(D), nn.Linear(D, VOCAB)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.embed(ids) + self.position)))


model = LM()
first = model.blocks[1].router.weight.detach().clone()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
handle = rangewatch.attach(model, optimizer)
follows = torch.randint(0, VOCAB, (VOCAB, 2))
for step in range(240):
    ids = torch.empty(12, T + 1, dtype=torch.long)
    ids[:, 0] = torch.randint(0, VOCAB, (12,))
    for t in range(T):
        ids[:, t + 1] = follows[ids[:, t], (torch.rand(12) < 0.3).long()]
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), model.blocks[1].router.weight.grad, (model.blocks[1].router.weight - first).abs().max().item(), flush=True)
handle.detach()
