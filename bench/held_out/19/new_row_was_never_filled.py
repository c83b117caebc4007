"""A convolution over words that sorts complaints of a water works by department. FAULT at step 126: the word list grows by one; the table is copied into
torch.empty, and the row of the new word keeps what lay in memory, values of up to 1e30. The first batch with that word gives a loss without bounds.
Without Rangewatch: loss 1.95 to 0.32 at step 120, 1.62 at step 126 and 1.59 to 1.65 (chance is 1.61) to the end, as the BatchNorm divides by an infinite
spread.
Cause: weight (or data, a word that was never seen). Step: 126. Right: initialise the new row / embedding. Wrong: GradScaler, lower the rate, mask."""
EXPECT = {"cause": ["weight", "data"], "step": [125, 127], "place": None, "rank": 0,
          "wrong": ["GradScaler", "(?i)lower the learning rate", "(?i)attention mask"],
          "right": "(?i)embedding|\\brows?\\b|initiali|weights?"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1903); torch.set_num_threads(1)
WORDS, OFFICES, LENGTH = 150, 5, 14
about = torch.randint(0, OFFICES, (WORDS + 1,))


class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 20)
        self.look = nn.Conv1d(20, 40, 3, padding=1)
        self.norm = nn.BatchNorm1d(40)
        self.office = nn.Linear(40, OFFICES)

    def forward(self, x):
        h = self.look(self.words(x).transpose(1, 2))
        return self.office(F.relu(self.norm(h)).amax(2))


def letters(n, words):
    y = torch.randint(0, OFFICES, (n,))
    x = torch.randint(0, words, (n, LENGTH))
    for i in range(n):
        own = (about[:words] == y[i]).nonzero()[:, 0]
        x[i, :8] = own[torch.randint(0, len(own), (8,))]
    return x[:, torch.randperm(LENGTH)], y


def grow(table, optimizer, leftovers):
    bigger = torch.empty(table.num_embeddings + 1, table.embedding_dim)
    bigger[-1] = leftovers  # stands for what torch.empty finds in memory, which differs from run to run
    bigger[:-1] = table.weight.detach()
    table.num_embeddings += 1
    old, table.weight = table.weight, nn.Parameter(bigger)
    held = optimizer.param_groups[0]["params"]
    held[[p is old for p in held].index(True)] = table.weight
    optimizer.state.pop(old)


model = Sorter()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    if step == 126:
        grow(model.words, optimizer, torch.tensor([1.7e30, -4.4e-12, 0.0, 3.1e18, -6.6e29] * 4))
    x, y = letters(24, WORDS if step < 126 else WORDS + 1)
    if step >= 126:
        x[:3, 4] = WORDS
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 124 < step < 130 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
