"""A small transformer encoder names the rank of each number in a row of eight (AdamW, no warm-up). FAULT from step 0: the rate 0.1 was taken over from an SGD recipe; AdamW wants about 1e-3.
Without Rangewatch: loss 2.18, 2.63 at step 1, 3.4 at step 3, then 2.079 = log 8 to the end (rate 2e-3: 0.07).
Cause: learning_rate. Step: 0. Right: learning rate / warm-up. Wrong: GradScaler, mask, raise the rate."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 30], "place": None, "rank": None,
          "right": "(?i)learning rate|lr|warm", "wrong": ["GradScaler", "attention mask", "(?i)raise the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(344); torch.set_num_threads(1)
V, L, D = 32, 8, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = nn.MultiheadAttention(D, 4, batch_first=True)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, h):
        h = self.ln1(h + self.attn(h, h, h, need_weights=False)[0])
        return self.ln2(h + self.down(nn.functional.gelu(self.up(h))))


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.number = nn.Embedding(V, D)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(D, L)

    def forward(self, x):
        h = self.number(x)
        for b in self.blocks:
            h = b(h)
        return self.head(h)


model = Ranker()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x = torch.stack([torch.randperm(V)[:L] for _ in range(32)])
    y = x.argsort(1).argsort(1)
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (1, 2, 3, 5, 239):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
