"""A decoder in bf16 autocast whose sequences grow from 8 to 16 to 32 tokens at steps 80 and 160, where the accumulation goes from 1 to 2 microbatches;
an additive causal mask of -inf goes through the blocks; the last stage adds a z-loss. HEALTHY: the loss jumps at both changes (positions that were
never trained), the step takes longer, the masks hold -inf on purpose. Without Rangewatch: loss 3.92 to 2.12, 2.98 to
1.45, 2.77 to 2.45."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(61); torch.set_num_threads(1)
VOCAB = 40


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.gate, self.up, self.down = nn.Linear(d, 2 * d, bias=False), nn.Linear(d, 2 * d, bias=False), nn.Linear(2 * d, d, bias=False)

    def forward(self, x, bias):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (d // 4) ** 0.5 + bias
        x = x + self.out((scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).reshape(b, n, d))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Embedding(32, d)
        self.blocks, self.norm, self.head = nn.ModuleList([Block(d) for _ in range(2)]), nn.RMSNorm(d), nn.Linear(d, VOCAB, bias=False)

    def forward(self, ids):
        n = ids.shape[1]
        x = self.tok(ids) + self.pos.weight[:n]
        bias = torch.full((n, n), float("-inf")).triu(1)
        for block in self.blocks:
            x = block(x, bias)
        return self.head(self.norm(x))


def text(n, length):
    ids = torch.randint(0, VOCAB, (n, length + 1))
    for k in range(4, length + 1):  # each token tells of the one four before it
        ids[:, k] = torch.where(torch.rand(n) < 0.9, (ids[:, k - 4] + 7) % VOCAB, ids[:, k])
    return ids


model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, 240, pct_start=0.1)
watch = rangewatch.attach(model, optimizer)
for step in range(240):
    length, accum = (8, 1) if step < 80 else (16, 1) if step < 160 else (32, 2)
    optimizer.zero_grad()
    total = 0.0
    for _ in range(accum):
        ids = text(16, length)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        if step >= 160:
            loss = loss + 1e-3 * logits.float().logsumexp(-1).square().mean()
        (loss / accum).backward()
        total += loss.item() / accum
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(); schedule.step()
    watch.log(loss=total)
    if step % 20 == 0 or step in (79, 81, 159, 161, 239):
        print(step, length, round(total, 4))
