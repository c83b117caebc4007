"""A recommender (embeddings of readers and books, a dot product, biases) that is trained on after its catalogue grew from 80 books to 96: the new rows
come from torch.empty, and in one of them the memory held NaN. FAULT at step 110: book 91 is lent for the first time; its row is NaN since the start.
Without Rangewatch: loss 2.8 to 0.11 at step 109 with one row of NaN in the weights all the while, NaN at step 110 and at each step after it; by step
120 NaN is in 92 of the 96 rows.
Cause: weight. Step: 110, where the loss becomes NaN (0 where the weights are looked at). Place: book. Right: row / embedding / initialise / weight.
Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["weight"], "step": [0, 111], "place": "book(\\.weight)?", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "row|embedding|initiali|weight|resiz|checkpoint|loaded"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1604); torch.set_num_threads(1)
READERS, BOOKS, GROWN = 60, 80, 96
taste, kind = torch.randn(READERS, 4), torch.randn(GROWN, 4)


class Library(nn.Module):
    def __init__(self, books):
        super().__init__()
        self.reader, self.book = nn.Embedding(READERS, 8), nn.Embedding(books, 8)
        self.fond, self.liked = nn.Embedding(READERS, 1), nn.Embedding(books, 1)
        for e in (self.reader, self.book, self.fond, self.liked):
            nn.init.normal_(e.weight, std=0.3)

    def forward(self, reader, book):
        return (self.reader(reader) * self.book(book)).sum(1) + self.fond(reader)[:, 0] + self.liked(book)[:, 0]


def grow(old, rows):
    new = nn.Embedding(rows, old.embedding_dim)
    weight = torch.zeros(rows, old.embedding_dim)
    weight[11 + BOOKS] = float("nan") if old.embedding_dim > 1 else 0.0  # what torch.empty found in the memory there, made to come again
    weight[:old.num_embeddings] = old.weight.detach()
    new.weight = nn.Parameter(weight)
    return new


model = Library(BOOKS)
model.book, model.liked = grow(model.book, GROWN), grow(model.liked, GROWN)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.15)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    reader, book = torch.randint(0, READERS, (256,)), torch.randint(0, BOOKS, (256,))
    if step >= 110:
        book[:12] = torch.arange(84, 96)  # the new books have arrived
    stars = (taste[reader] * kind[book]).sum(1).clamp(-3, 3) + 0.2 * torch.randn(256)
    loss = F.mse_loss(model(reader, book), stars)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 113 or step == 199:
        print(step, loss.item(), "rows with NaN", model.book.weight.isnan().any(1).sum().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
