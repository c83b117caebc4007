"""A small GRU language model of code-like tokens. FAULT at step 112: one batch comes from a shard that was tokenised with another vocabulary (the ids are shifted by 7): its loss jumps to
five times the usual and is finite; the steps behind it are as before.
Without Rangewatch: loss 3.48 to 1.12 at step 111, 5.77 at step 112, 1.24 at step 113, 1.19 at the end.
Cause: data. Step: 112. Right: batch / data / tokenizer / shard. Wrong: GradScaler, attention mask, DDP."""
EXPECT = {"cause": ["data", "(none)"], "step": [111, 115], "place": None, "rank": None, "least": "info",
          "right": "(?i)batch|data|token|shard|spike|input|target|label", "wrong": ["GradScaler", "attention mask", "(?i)all_reduce", "(?i)log of (0|zero)"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(112358); torch.set_num_threads(1)
V, T = 32, 20
table = torch.softmax(4 * torch.randn(V, V), 1)


def shard(n, offset=0):
    ids = torch.empty(n, T + 1, dtype=torch.long)
    ids[:, 0] = torch.randint(0, V, (n,))
    for k in range(T):
        ids[:, k + 1] = torch.multinomial(table[ids[:, k]], 1)[:, 0]
    ids[:, 1::2] = (ids[:, 1::2] + offset) % V
    return ids


class CodeLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(V, 32), nn.GRU(32, 64, batch_first=True), nn.Linear(64, V)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


model = CodeLM()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    ids = shard(32, 7 if step == 112 else 0)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 109 < step < 118 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
