"""A causal transformer with a warmup-stable-decay schedule: warmup of 20 steps, flat, then at step 150 down to 0 within 50; the batch is doubled at
step 80 by two microbatches, each divided by two. HEALTHY: the loss drops faster in the cooldown, gradients get less noisy at step 80, the rate ends at 0.
Without Rangewatch: loss 4.2 to 1.0."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(101); torch.set_num_threads(1)
VOCAB, N, D = 50, 16, 48


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, D), nn.Embedding(N, D)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(D, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2)])
        self.norm, self.head, self.mask = nn.LayerNorm(D), nn.Linear(D, VOCAB, bias=False), nn.Transformer.generate_square_subsequent_mask(N)
        self.tok.weight = self.head.weight

    def forward(self, ids):
        x = self.tok(ids) * D ** 0.5 + self.pos(torch.arange(N))
        for block in self.blocks:
            x = block(x, src_mask=self.mask)
        return self.head(self.norm(x))


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 20, 1.0, (200 - s) / 50))
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    parts, total = (1 if step < 80 else 2), 0.0
    optimizer.zero_grad()
    for _ in range(parts):
        ids = torch.randint(0, VOCAB, (12, N + 1))
        for k in range(1, N + 1):
            ids[:, k] = torch.where(torch.rand(12) < 0.15, ids[:, k], (ids[:, k - 1] * 7 + 3) % VOCAB)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) / parts
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(); schedule.step()
    watch.log(loss=total)
    if step % 20 == 0 or step == 199:
        print(step, round(total, 4))
