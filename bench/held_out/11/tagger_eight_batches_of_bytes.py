"""A recurrent tagger that was trained on one dialect is fine-tuned on another. FAULT at steps 110 to 117: a broken archive gives eight batches of random
bytes with random tags; the loss is high while they come and falls again.
Without Rangewatch: loss 5.85 to 0.62 at step 109; 4.1 to 4.5 at steps 110 to 117; 0.61 at step 118, 0.27 at step 200.
Variant of: losses: one_batch_of_noise_in_a_fine_tuning.
Cause: data. Step: 110. Right: batch / data / label / sample. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [109, 118], "place": None, "rank": None,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "batch|data|label|sample|input"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1113); torch.set_num_threads(1)
WORDS, TAGS = 60, 6
tag_of = torch.randint(0, TAGS, (2, WORDS))
tag_of[1, 20:] = tag_of[0, 20:]  # the dialects differ in twenty words


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(WORDS, 24)
        self.read = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(48, TAGS)

    def forward(self, x):
        return self.tag(self.read(self.word(x))[0])


def sentences(n, dialect):
    x = (torch.rand(n, 16).square() * WORDS).long()
    turned = torch.cat((torch.zeros(n, 1, dtype=torch.bool), x[:, :-1] < 6), 1)  # the word after a particle has the next tag
    return x, (tag_of[dialect][x] + turned) % TAGS


def loss_of(x, tags):
    return F.cross_entropy(model(x).flatten(0, 1), tags.flatten())


model = Tagger()
early = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(150):  # the first dialect
    early.zero_grad()
    loss_of(*sentences(32, 0)).backward()
    early.step()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, tags = sentences(32, 1)
    if 110 <= step < 118:
        x, tags = torch.randint(0, WORDS, x.shape), torch.randint(0, TAGS, tags.shape)
    loss = loss_of(x, tags)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 124:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
