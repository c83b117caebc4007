"""HEALTHY: a GRU that names the language of a word. Memory is short, so gradients of six small batches are gathered for each update; five calls of backward of
six change no weight.
Without Rangewatch: loss 1.64 to 0.22.
Right: nothing above info."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2034); torch.set_num_threads(1)
TONGUES, LETTERS = 5, 26
habit = (2.6 * torch.randn(TONGUES, LETTERS, LETTERS)).softmax(2)


class Tongue(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter, self.read, self.name = nn.Embedding(LETTERS, 16), nn.GRU(16, 40, batch_first=True), nn.Linear(40, TONGUES)

    def forward(self, x):
        return self.name(self.read(self.letter(x))[1][0])


def words(n):
    y, x = torch.randint(0, TONGUES, (n,)), torch.randint(0, LETTERS, (n, 9))
    for k in range(1, 9):
        x[:, k] = torch.multinomial(habit[y, x[:, k - 1]], 1)[:, 0]
    return x, y


model = Tongue()
optimizer = torch.optim.RAdam(model.parameters(), lr=1.5e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    total = 0.0
    for _ in range(6):
        x, y = words(12)
        loss = F.cross_entropy(model(x), y) / 6
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0 or step == 179:
        print(step, total, flush=True)
    handle.log(loss=total)
handle.detach()
