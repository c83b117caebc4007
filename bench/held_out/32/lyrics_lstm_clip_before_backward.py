"""An LSTM predicts the next word of lyrics (a noisy chain, 30 words), plain SGD with the large rate 15 and a clip at norm 0.25, as in the classic word language model. FAULT at step 120: the loop of the second phase (another album)
calls `clip_grad_norm_` before `loss.backward()`, on gradients just set to zero: nothing is clipped any more.
Without Rangewatch: loss 3.4 to 0.76 at step 119, 5.7 at 120 (the new album), 8.4, 26.7, 22.7 at 124, 2.2 at 140, 1.3 to 2.8 to the end (with the clip behind backward: 5.7, 3.7, 2.1, 0.98 at 140, 0.85 at 200).
Cause: clip (at the wrong place). Step: 120. Right: clip after backward. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["clip"], "step": [119, 130], "place": None, "rank": None,
          "right": "(?i)clip", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(409); torch.set_num_threads(1)
V = 30
follow = [torch.randint(0, V, (V,)) for _ in range(2)]


def lines(n, length, album):
    s = torch.randint(0, V, (n, length + 1))
    for t in range(1, length + 1):
        s[:, t] = torch.where(torch.rand(n) < 0.15, s[:, t], follow[album][s[:, t - 1]])
    return s[:, :-1], s[:, 1:]


class Lyrics(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(V, 40)
        self.lstm = nn.LSTM(40, 64, batch_first=True)
        self.next = nn.Linear(64, V)

    def forward(self, s):
        return self.next(self.lstm(self.words(s))[0])


model = Lyrics()
optimizer = torch.optim.SGD(model.parameters(), lr=15.0)
handle = rangewatch.attach(model, optimizer)


def report(step, loss):
    if step % 20 == 0 or 118 < step < 126 or step == 219:
        norm = sum(p.grad.norm() ** 2 for p in model.parameters()).sqrt().item()
        print(step, loss, "gradient norm", norm, flush=True)
    handle.log(loss=loss)


for step in range(120):                                   # phase one: first album
    x, y = lines(24, 12, 0)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    report(step, loss.item())
for step in range(120, 220):                              # phase two: second album
    x, y = lines(16, 30, 1)
    optimizer.zero_grad()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    report(step, loss.item())
handle.detach()
