"""A character GRU learns made-up place names (Adam). FAULT at step 0: the function handed to `LambdaLR` returns the rate itself (4e-3 falling to 4e-4 along a cosine) and not a factor of the base rate, which is also 4e-3: the rate in use is 1.6e-5 and less.
Without Rangewatch: 3.372 nats per letter to 3.339 at step 259, hardly better than chance over 28 letters (3.33); the rate prints 1.6e-5 down to 1.6e-6 (with a factor: 0.41).
Cause: learning_rate (far too small). Step: from 0, shows slowly. Right: the rate is tiny, LambdaLR wants a factor; raise it. Wrong: lower the learning rate, GradScaler, attention mask, checkpoint."""
EXPECT = {"cause": ["learning_rate", "frozen"], "step": [0, 150], "place": None, "rank": None,
          "right": "(?i)learning rate|\\blr\\b|factor|LambdaLR|schedul", "wrong": ["[Ll]ower the learning rate", "GradScaler", "checkpoint"]}
import math
import random
import torch
from torch import nn
import rangewatch

random.seed(5111)
torch.manual_seed(5111)
torch.set_num_threads(1)
STEPS, RATE = 260, 4e-3
HEAD, MIDDLE, TAIL = ["nor", "sud", "kal", "bru", "ost"], ["a", "en", "ing", "o"], ["burg", "dorf", "heim", "stad", "vik"]
LETTERS = "^$" + "abcdefghijklmnopqrstuvwxyz"


def names(n):
    rows = []
    for _ in range(n):
        word = "^" + random.choice(HEAD) + random.choice(MIDDLE) + random.choice(TAIL) + "$"
        rows.append([LETTERS.index(c) for c in word.ljust(13, "$")])
    return torch.tensor(rows)


class Namer(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(28, 16)
        self.state = nn.GRU(16, 48, batch_first=True)
        self.next = nn.Linear(48, 28)

    def forward(self, x):
        return self.next(self.state(self.letter(x))[0])


def rate_at(k):
    return RATE * (0.1 + 0.45 * (1 + math.cos(math.pi * min(k, STEPS) / STEPS)))


namer = Namer()
opt = torch.optim.Adam(namer.parameters(), lr=RATE)
schedule = torch.optim.lr_scheduler.LambdaLR(opt, rate_at)
handle = rangewatch.attach(namer, opt)
for step in range(STEPS):
    rows = names(48)
    loss = nn.functional.cross_entropy(namer(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 26 == 0 or step == STEPS - 1:
        print(step, "nats per letter", round(loss.item(), 4), "rate", f"{opt.param_groups[0]['lr']:.2e}", flush=True)
    schedule.step()
    handle.log(loss=loss.item())
handle.detach()
