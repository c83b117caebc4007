"""A net that tells the mood of short notes: an LSTM, then the maximum over the words that are not padding. FAULT at step 92: notes that hold no word
(only a picture was sent) come into the batches; all their places are filled with -inf before the maximum, so it is -inf, and the next layer gives NaN.
Without Rangewatch: loss 1.38 to 0.67 at step 91, NaN from step 92 to the end.
Cause: mask (all places of a row are masked), forward_arithmetic or data. Step: 92. Right: mask / empty / padding / -inf. Wrong: lower the rate, GradScaler."""
EXPECT = {"cause": ["mask", "forward_arithmetic", "data"], "step": [91, 93], "place": None, "rank": 0,
          "wrong": ["(?i)lower the learning rate", "GradScaler", "(?i)clip_grad_norm_"],
          "right": "(?i)mask|empty|padding|\\binf|input|length"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1918); torch.set_num_threads(1)
WORDS, MOODS = 70, 4
mood_of = torch.randint(0, MOODS, (WORDS,))


class Mood(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 16, padding_idx=0)
        self.read = nn.LSTM(16, 20, batch_first=True, bidirectional=True)
        self.mood = nn.Sequential(nn.Linear(40, 24), nn.Tanh(), nn.Linear(24, MOODS))

    def forward(self, x):
        h = self.read(self.words(x))[0].masked_fill((x == 0)[:, :, None], float("-inf"))
        return self.mood(h.amax(1))


def notes(n, with_empty):
    x = torch.randint(1, WORDS, (n, 9))
    length = torch.randint(2, 10, (n, 1))
    y = F.one_hot(mood_of[x[:, :2]], MOODS).sum(1).argmax(1)
    if with_empty:
        length[torch.rand(n) < 0.08] = 0
    return x * (torch.arange(9) < length), y


model = Mood()
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(170):
    x, y = notes(40, with_empty=step >= 92)
    loss = F.cross_entropy(model(x), y, label_smoothing=0.05)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 90 < step < 94 or step == 169:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
