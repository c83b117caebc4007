"""A text classifier, a transformer with its own attention that adds the mask to the scores; up to step 140 the mask is 0 and -inf. FAULT from step
140 on: a new collate function gives 1 for words and 0 for padding (as tokenizers do), which is added as it is. Padding, three quarters of a batch,
is attended to, and the loss rises and stays higher.
Without Rangewatch: loss 1.75 to 0.4 to 0.9 about step 120, 1.42 at step 140, 1.0 to 1.3 after.
Report: huggingface/transformers#41443 (a bool mask is added to the scores), awslabs/gluonts#1401 (masked with 1e-9), mlverse/torch#1208.
Cause: mask. Step: 140. Right: mask / padding. Wrong: learning rate, GradScaler, bfloat16."""
EXPECT = {"cause": ["mask"], "step": [140, 180], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "bfloat16"],
          "right": "mask|padding"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(819); torch.set_num_threads(1)
WORDS, LENGTH, WIDTH, TOPICS = 60, 32, 48, 5


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj, self.softmax = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Softmax(-1)

    def forward(self, x, mask):
        q, k, v = (t.view(len(x), LENGTH, 4, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(2, 3) / 12 ** 0.5 + mask
        return self.proj((self.softmax(scores) @ v).transpose(1, 2).flatten(2))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention = nn.ModuleList(Attention() for _ in range(2))
        self.topic = nn.Linear(WIDTH, TOPICS)

    def forward(self, x, mask):
        h = self.words(x) + 0.1 * self.places.weight
        for norm, attention in zip(self.norms, self.attention):
            h = h + attention(norm(h), mask)
        return self.topic(h[:, 0])


def collate(new):
    length = torch.randint(4, 14, (48,))
    y = torch.randint(0, TOPICS, (48,))
    x = torch.randint(1, WORDS, (48, LENGTH))
    hint = torch.rand(48, LENGTH) < 0.35
    x[hint] = (1 + y[:, None] * 6 + torch.randint(0, 6, (48, LENGTH)))[hint]
    x[:, 0] = 59
    padded = torch.arange(LENGTH) >= length[:, None]
    x[padded] = x.roll(1, 0)[padded]  # leftovers of the buffer: other texts
    attention_mask = (~padded).float()
    mask = attention_mask if new else torch.zeros(48, LENGTH).masked_fill(padded, float("-inf"))
    return x, mask[:, None, None], y


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(280):
    x, mask, y = collate(new=step >= 140)
    loss = F.cross_entropy(model(x, mask), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 138 < step < 144:
        print(step, loss.item(), flush=True)
handle.detach()
