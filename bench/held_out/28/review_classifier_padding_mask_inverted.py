"""A transformer classifier of reviews of unequal length. FAULT from the start: `src_key_padding_mask` is given the attention mask of the tokenizer (True where there is a word),
while True means here: leave out. Every query attends the padding only, the words are never seen, the pooled mean is over the words' own positions with nothing of the others.
Without Rangewatch: loss 0.67, 0.66 to 0.73 (log 2 is 0.693) to the end: it learns nothing.
Cause: mask. Step: any. Right: mask / inverted / padding. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["mask", "(none)"], "step": [0, 180], "place": None, "rank": None,
          "right": "(?i)mask|padding|invert", "wrong": ["[Ll]ower the learning rate", "GradScaler", "(?i)all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(909); torch.set_num_threads(1)
V, T, D = 40, 18, 32


class Reviews(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D, padding_idx=0)
        self.pos = nn.Parameter(0.05 * torch.randn(T, D))
        self.cls = nn.Parameter(0.05 * torch.randn(1, 1, D))
        layer = nn.TransformerEncoderLayer(D, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(D, 2)

    def forward(self, ids, attention_mask):
        x = torch.cat((self.cls.expand(len(ids), -1, -1), self.emb(ids) + self.pos), 1)
        mask = F.pad(attention_mask, (1, 0), value=False)
        return self.head(self.encoder(x, src_key_padding_mask=mask)[:, 0])


def reviews(n):
    lengths = torch.randint(5, T - 1, (n, 1))
    ids = torch.randint(1, V, (n, T)) * (torch.arange(T) < lengths)
    score = ((ids > 0) & (ids < 14)).sum(1) - (ids > 26).sum(1)
    return ids, ids != 0, (score > 0).long()


model = Reviews()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    ids, attention_mask, y = reviews(48)
    loss = F.cross_entropy(model(ids, attention_mask), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
