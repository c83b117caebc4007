"""Two-tower net for loans of a library: tables of readers and books with sparse gradients (SparseAdam), small dense towers (SGD). HEALTHY: a step touches few rows
of each table, most rows stand still for many steps, and the tables get sparse gradients.
Without Rangewatch: loss 5.38 to 4.43 (which of many popular books is taken remains chance); 67 to 78 of 400 books are touched in a step."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2738); torch.set_num_threads(1)
READERS, BOOKS = 600, 400
reader_taste, book_kind = torch.randint(0, 8, (READERS,)), torch.randint(0, 8, (BOOKS,))
popular = 1.0 / torch.arange(1, BOOKS + 1).float() ** 0.7


def loans(n):
    reader = torch.randint(0, READERS, (n,))
    book = torch.multinomial(popular * (0.05 + (book_kind[None] == reader_taste[reader][:, None])), 1)[:, 0]
    return reader, book


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.readers = nn.Embedding(READERS, 16, sparse=True)
        self.books = nn.Embedding(BOOKS, 16, sparse=True)
        self.r, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, reader, book):
        return self.r(self.readers(reader)) @ self.b(self.books(book)).T / 2


net = Towers()
tables = torch.optim.SparseAdam([net.readers.weight, net.books.weight], lr=0.03)
dense = torch.optim.SGD([*net.r.parameters(), *net.b.parameters()], lr=0.05, momentum=0.9)
handle = rangewatch.attach(net, [tables, dense])
for step in range(240):
    reader, book = loans(96)
    score = net(reader, book) - popular[book].log()
    twin = (book[:, None] == book[None]) & ~torch.eye(96, dtype=torch.bool)
    loss = F.cross_entropy(score.masked_fill(twin, -1e9), torch.arange(96))
    tables.zero_grad(); dense.zero_grad()
    loss.backward()
    tables.step(); dense.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "rows touched", len(book.unique()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
