"""A masked-token transformer on sentences of a Markov chain (AdamW, linear warm-up and decay to 0). HEALTHY: a curriculum raises the share of masked tokens from 15 % to 40 % at step 110 and to 70 % at step 180, so
the loss leaps up twice and stays higher; sentences are padded, padding is masked in the attention and carries the label -100.
Without Rangewatch: loss 2.52 to 0.48 at step 109, 0.71 at 110, 0.22 at 179, 0.73 at 180, 0.30 at the end."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3431); torch.set_num_threads(1)
V, L, D, PAD, MASK = 12, 14, 40, 10, 11
follow = torch.stack([torch.randperm(10) for _ in range(2)])


def sentences(n, share):
    x = torch.empty(n, L, dtype=torch.long)
    x[:, 0] = torch.randint(0, 10, (n,))
    for k in range(1, L):
        x[:, k] = follow[(torch.rand(n) < 0.05).long(), x[:, k - 1]]
    pad = torch.arange(L) >= torch.randint(8, L + 1, (n, 1))
    hidden = (torch.rand(n, L) < share) & ~pad
    labels = x.masked_fill(~hidden, -100)
    return x.masked_fill(hidden, MASK).masked_fill(pad, PAD), pad, labels


class MLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D, padding_idx=PAD), nn.Parameter(torch.randn(L, D))
        layer = nn.TransformerEncoderLayer(D, 4, 80, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(D), enable_nested_tensor=False)
        self.out = nn.Linear(D, 10)

    def forward(self, x, pad):
        return self.out(self.encoder(self.tok(x) + self.pos, src_key_padding_mask=pad))


model = MLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 30, (260 - s) / 230))
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x, pad, labels = sentences(48, 0.15 if step < 110 else 0.4 if step < 180 else 0.7)
    loss = nn.functional.cross_entropy(model(x, pad).flatten(0, 1), labels.flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 20 == 0 or step in (109, 110, 179, 259):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
