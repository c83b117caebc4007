"""A language model of one LSTM, by SGD with a rate of 20 and a clip at 0.25, as in a well-known example. HEALTHY: the weights are small and the gradient is
too; each word has two that may follow, so the loss ends near 0.64 at best.
Seen: loss 3.68 at step 0, 1.32 at step 40, 0.75 to 0.93 from step 120 on; the norm before the clip is 0.13 to 0.41."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1531); torch.set_num_threads(1)
WORDS, T = 40, 16
follow = torch.stack([torch.randperm(WORDS)[:3] for _ in range(WORDS)])


class WordModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.read, self.next = nn.Embedding(WORDS, 32), nn.LSTM(32, 48, batch_first=True), nn.Linear(48, WORDS)
        for w in (self.word.weight, self.next.weight):
            nn.init.uniform_(w, -0.1, 0.1)

    def forward(self, x, state):
        h, state = self.read(self.word(x), state)
        return self.next(h), state


text = torch.zeros(8, 260 * T + 1, dtype=torch.long)
for t in range(1, text.shape[1]):
    text[:, t] = follow[text[:, t - 1], torch.randint(0, 3, (8,)).clamp(max=1)]

model = WordModel()
optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
handle = rangewatch.attach(model, optimizer)
state = None
for step in range(260):
    part = text[:, step * T:(step + 1) * T + 1]
    logits, state = model(part[:, :-1], state)
    state = tuple(s.detach() for s in state)
    loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    if step % 20 == 0 or step == 259:
        print(step, loss.item(), "norm before the clip", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
