"""A net with one self-attention layer of its own that tells the tone of short messages. FAULT at step 90: the padding mask is inverted (True where a word stands) from the start;
while the messages have padding the words merely look at the padding; the first batch cut to full length has none, each row of the softmax is all -inf, and the loss is NaN.
Without Rangewatch: loss 1.17 to 0.36 at step 89, NaN from step 90 on.
Cause: mask. Step: 90 (or before, for a mask that hides the words). Right: mask. Wrong: GradScaler, lower the rate, bfloat16."""
EXPECT = {"cause": ["mask"], "step": [0, 91], "place": None, "rank": 0,
          "right": "(?i)mask", "wrong": ["GradScaler", "[Ll]ower the learning rate", "bfloat16"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2418); torch.set_num_threads(1)


class Tone(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.word = nn.Embedding(101, w, padding_idx=0)
        self.ask, self.show, self.give = nn.Linear(w, w), nn.Linear(w, w), nn.Linear(w, w)
        self.norm, self.tone = nn.LayerNorm(w), nn.Linear(w, 3)

    def forward(self, x):
        h = self.word(x)
        score = self.ask(h) @ self.show(h).transpose(1, 2) / h.shape[2] ** 0.5
        score = score.masked_fill((x != 0)[:, None], float("-inf"))
        h = self.norm(h + score.softmax(2) @ self.give(h))
        return self.tone(h.mean(1))


colour = torch.randint(0, 3, (101,))


def messages(n, full):
    k = torch.randint(0, 3, (n,))
    x = torch.randint(1, 101, (n, 12))
    for _ in range(3):
        x = torch.where((colour[x] != k[:, None]) & (torch.rand(n, 12) < 0.7), torch.randint(1, 101, (n, 12)), x)
    length = torch.full((n, 1), 12) if full else torch.randint(4, 12, (n, 1))
    return torch.where(torch.arange(12) < length, x, 0), k


model = Tone()
optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(160):
    x, k = messages(48, step >= 90 and step % 10 == 0)
    loss = F.cross_entropy(model(x), k)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or 88 < step < 93 or step == 159:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
