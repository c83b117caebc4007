"""A decoder with left-padded batches: a causal mask and a padding mask of -inf, added; the rows of the padding see themselves only, so no row is masked whole. Labels of -100 at the padding. HEALTHY.
Without Rangewatch: loss 3.02 to 0.17."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(32); torch.set_num_threads(1)
V, T, D = 18, 16, 32


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, D, padding_idx=0), nn.Embedding(T, D)
        self.n1, self.n2, self.n3 = nn.LayerNorm(D), nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.ff = nn.Sequential(nn.Linear(D, 96), nn.GELU(), nn.Linear(96, D))
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        pad = ids == 0
        keep = torch.tril(torch.ones(T, T, dtype=torch.bool)) & ~pad[:, None]
        keep = keep | torch.eye(T, dtype=torch.bool)
        bias = torch.zeros(keep.shape).masked_fill(~keep, float("-inf"))[:, None]
        x = self.emb(ids) + self.pos((~pad).long().cumsum(1).clamp(min=1) - 1)
        q, k, v = (u.view(len(ids), T, 4, -1).transpose(1, 2) for u in self.qkv(self.n1(x)).split(D, 2))
        a = ((q @ k.transpose(2, 3)) / (D // 4) ** 0.5 + bias).softmax(-1) @ v
        x = x + self.o(a.transpose(1, 2).reshape(x.shape))
        return self.head(self.n3(x + self.ff(self.n2(x))))


def batch(n):
    length = torch.randint(5, T + 2, (n, 1))
    start, stride = torch.randint(0, V - 1, (n, 1)), torch.randint(1, 4, (n, 1))
    ids = (start + stride * torch.arange(T + 1)) % (V - 1) + 1
    return ids * (torch.arange(T + 1) >= T + 1 - length)


model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    ids = batch(32)
    inp, labels = ids[:, :-1], ids[:, 1:].clone()
    labels[inp == 0] = -100
    loss = F.cross_entropy(model(inp).flatten(0, 1), labels.flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
