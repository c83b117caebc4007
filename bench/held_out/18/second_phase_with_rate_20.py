"""A small GPT learns lines of rhymed numbers, in bfloat16 autocast, AdamW with 3e-3. FAULT at step 85: for the second phase the rate is read from a table
of another optimizer: 20 instead of 2e-3. The weights jump by 20 each.
Without Rangewatch: loss 3.31 to 0.98 at step 84, 0.976 at step 85, 3,780 at step 86, 17,338 at step 87, 2,550 at the end.
Cause: learning_rate. Step: 85. Right: learning rate. Wrong: GradScaler, attention mask, data."""
EXPECT = {"cause": ["learning_rate"], "step": [84, 88], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask"],
          "right": "(?i)learning rate|\\blr\\b|schedul"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1823); torch.set_num_threads(1)
WORDS, LENGTH, WIDTH, HEADS = 24, 12, 32, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm_1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x):
        h = self.word(x) + self.place.weight
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def lines(n):
    first = torch.randint(0, WORDS, (n, 3))
    rhyme = (first * 5 + 1) % WORDS
    return torch.cat((first, rhyme, (first + 2) % WORDS, rhyme.flip(1), first[:, :1]), 1)


model = Gpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(170):
    if step == 85:
        optimizer.param_groups[0]["lr"] = 20.0
    line = lines(24)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(line[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), line[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or 83 < step < 89 or step == 169:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
