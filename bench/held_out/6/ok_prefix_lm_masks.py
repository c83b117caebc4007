"""A language model of one block with an additive causal mask of -Inf and one of padding, rows of 2 to 14 words, targets of -100 behind their end. Every
row of the scores has something left, so that softmax is finite. HEALTHY. Without Rangewatch: loss 3.32 to 0.0007."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(625); torch.set_num_threads(1)
VOCAB, LENGTH, DIM = 24, 14, 32


class PrefixLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids, length):
        x = self.embed(ids) + self.place.weight
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        causal = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        pad = torch.zeros(len(ids), 1, LENGTH).masked_fill(torch.arange(LENGTH) >= length[:, None, None], float("-inf"))
        score = q @ k.transpose(1, 2) / DIM ** 0.5 + causal + pad
        x = x + self.out(score.softmax(-1) @ v)
        return self.head(x + self.mlp(self.norm2(x)))


model = PrefixLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    ids = (torch.randint(0, VOCAB, (24, 1)) + 5 * torch.arange(LENGTH + 1)) % VOCAB
    length = torch.randint(2, LENGTH + 1, (24,))
    target = ids[:, 1:].masked_fill(torch.arange(LENGTH) >= length[:, None], -100)
    logits = model(ids[:, :-1], length)
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), flush=True)
handle.detach()
