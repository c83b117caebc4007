"""HEALTHY. A recurrent language model of weaving patterns, trained as the old recipe has it: SGD with a rate of 15 and the gradient clipped to 0.25, the
hidden state carried from batch to batch, the rate divided by 4 at step 150.
Without Rangewatch: loss 2.77 to 0.34 at step 100 and 0.28 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1835); torch.set_num_threads(1)
THREADS, ROWS = 16, 20


class Loom(nn.Module):
    def __init__(self):
        super().__init__()
        self.thread = nn.Embedding(THREADS, 40)
        self.lstm = nn.LSTM(40, 64, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.next = nn.Linear(64, THREADS)
        nn.init.uniform_(self.thread.weight, -0.1, 0.1)
        nn.init.uniform_(self.next.weight, -0.1, 0.1)

    def forward(self, x, state):
        h, state = self.lstm(self.drop(self.thread(x)), state)
        return self.next(self.drop(h)), state


motif = torch.randint(0, THREADS, (12, 9))


def cloth(n, length):
    rows = []
    for _ in range(n):
        row = torch.cat([motif[i] for i in torch.randint(0, 12, (length // 9 + 1,)).tolist()])[:length]
        rows.append(row)
    return torch.stack(rows)


archive = cloth(ROWS, 12 * 220 + 1)
model = Loom()
optimizer = torch.optim.SGD(model.parameters(), lr=15.0)
handle = rangewatch.attach(model, optimizer)
state = None
for step in range(220):
    if step == 150:
        optimizer.param_groups[0]["lr"] /= 4
    piece = archive[:, step * 12 : step * 12 + 13]
    logits, state = model(piece[:, :-1], state)
    state = tuple(s.detach() for s in state)
    loss = F.cross_entropy(logits.flatten(0, 1), piece[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
