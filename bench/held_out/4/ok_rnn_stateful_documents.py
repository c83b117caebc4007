"""A stateful LSTM language model by truncated backpropagation: the state is carried over and detached, and set to 0 where a document begins, every 20
steps, where each row gets another of three languages. HEALTHY: the loss jumps at each new document and falls within it; nothing is shuffled. Without Rangewatch:
loss 3.7 to 0.6, up by 0.1 to 0.6 at each new document."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(137); torch.set_num_threads(1)
VOCAB, N = 40, 12


class LM(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.tok, self.rnn, self.head = nn.Embedding(VOCAB, d), nn.LSTM(d, d, batch_first=True), nn.Linear(d, VOCAB)

    def forward(self, ids, state):
        x, state = self.rnn(self.tok(ids), state)
        return self.head(x), state


model = LM()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    if step % 20 == 0:
        state, last, jump = None, torch.randint(0, VOCAB, (16,)), torch.randint(1, 4, (16,))
    words = [last]
    for _ in range(N):
        words.append(torch.where(torch.rand(16) < 0.05, torch.randint(0, VOCAB, (16,)), (words[-1] * 3 + 7 * jump) % VOCAB))
    ids, last = torch.stack(words, 1), words[-1]
    out, state = model(ids[:, :-1], state)
    state = tuple(s.detach() for s in state)
    loss = F.cross_entropy(out.flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 10 == 0 or step % 20 == 19:
        print(step, round(loss.item(), 4))
