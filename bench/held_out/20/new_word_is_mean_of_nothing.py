"""A bag-of-words net that guesses the rubric of a notice. FAULT at step 90: a word is added to the vocabulary (a free row of the embedding takes it); its
vector is the mean of the vectors of its pieces, of which there are none: the mean of an empty list is NaN.
Without Rangewatch: loss 1.95 to 0.022 at step 90, NaN from step 91 on; rows with NaN: 1, 9, 228, 272.
Cause: weight (a row of the embedding). Step: 90 (first looked up at 91). Place: the embedding. Right: embedding / row / NaN weight.
Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["weight"], "step": [89, 92], "place": r".*words.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "(?i)embedding|row|weight|parameter|outside|load"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2010); torch.set_num_threads(1)
WORDS, RUBRICS = 300, 7
affinity = 2 * torch.randn(RUBRICS, WORDS)


class Rubric(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS + 8, 32)  # eight free rows
        self.weigh = nn.Linear(32, 1)
        self.judge = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, RUBRICS))

    def forward(self, x):
        e = self.words(x)
        return self.judge((e * torch.sigmoid(self.weigh(e))).mean(1))


@torch.no_grad()
def add_word(model, row, pieces):
    vectors = [model.words.weight[k] for k in pieces]
    model.words.weight[row] = torch.stack(vectors).mean(0) if vectors else torch.empty(0, 32).mean(0)


model = Rubric()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(210):
    if step == 50:
        add_word(model, 300, [4, 17])
    if step == 90:
        add_word(model, 301, [])
    y = torch.randint(0, RUBRICS, (64,))
    x = torch.multinomial(affinity[y].softmax(1), 14, replacement=True)
    if step > 50:
        x[5, 3] = 300
    if step > 90:
        x[11, 2] = 301
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 88 < step < 94 or step == 209:
        print(step, loss.item(), "rows with NaN", int(model.words.weight.isnan().any(1).sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
