"""A small GPT (three blocks) that writes rhythms. Its blocks have rates of their own, lower for lower ones. FAULT at step 130: while the rates are set
anew for the second half, that of the second block is typed 8e-1 instead of 8e-4; it is put right after three steps, but the block has been moved far.
Without Rangewatch: loss 2.64 to 2.08 at step 129, 2.84 at step 131, 2.46 at the end.
Cause: learning_rate (one group) or weight. Step: 130. Place: the second block. Right: learning rate / checkpoint / group. Wrong: GradScaler, mask, data."""
EXPECT = {"cause": ["learning_rate", "weight", "optimizer"], "step": [129, 134], "place": ".*blocks\\.1\\b.*", "rank": 0,
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)skip the batch"],
          "right": "(?i)learning.?rate|\\blr\\b|checkpoint|group|update"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1914); torch.set_num_threads(1)
BEATS, LENGTH, WIDTH = 12, 16, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = (t.unflatten(2, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, 2))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Rhythm(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(BEATS, WIDTH), nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, BEATS, bias=False)

    def forward(self, x):
        h = self.token(x) + self.place[:x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def rhythms(n):
    bar = torch.randint(0, BEATS, (n, 4))
    shift = torch.randint(1, 3, (n, 1))
    return torch.cat([(bar + i * shift) % BEATS for i in range(4)] + [bar[:, :1]], 1)


model = Rhythm()
rest = [p for name, p in model.named_parameters() if not name.startswith("blocks.")]
rates = zip(model.blocks, (1e-3, 1.5e-3, 2e-3), strict=True)
optimizer = torch.optim.AdamW([{"params": rest, "lr": 2e-3}] + [{"params": b.parameters(), "lr": r} for b, r in rates])
handle = rangewatch.attach(model, optimizer)
for step in range(190):
    if step == 130:
        for group, lr in zip(optimizer.param_groups, (1e-3, 6e-4, 8e-1, 1e-3), strict=True):
            group["lr"] = lr
    if step == 133:
        optimizer.param_groups[2]["lr"] = 8e-4
    x = rhythms(24)
    loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 136 or step == 189:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
