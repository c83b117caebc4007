"""A small causal post-norm transformer writes on strings of a grammar of digits (each sign is a function of the last two, with some noise). Adam. FAULT from step 0: the rate 0.05 was taken over from an SGD
config of a convnet; no warm-up.
Without Rangewatch: loss 2.53, 3.42 at step 1, then 2.39 to the end, the entropy of the signs (with 0.002: 0.73).
Cause: learning_rate. Step: from 0. Right: lower the learning rate / warm-up. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 60], "place": None, "rank": None,
          "right": "(?i)learning rate|warm-?up|\\blr\\b|rate", "wrong": ["GradScaler", "attention mask", "(?i)raise the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(402); torch.set_num_threads(1)
V, T, W = 12, 20, 48
rule = torch.randint(0, V, (V, V))


def strings(n):
    s = torch.randint(0, V, (n, T + 1))
    for t in range(2, T + 1):
        s[:, t] = torch.where(torch.rand(n) < 0.1, s[:, t], rule[s[:, t - 1], s[:, t - 2]])
    return s[:, :-1], s[:, 1:]


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, W), nn.Embedding(T, W)
        layer = nn.TransformerEncoderLayer(W, 4, 96, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(W, V)
        self.register_buffer("causal", torch.triu(torch.ones(T, T, dtype=torch.bool), 1))

    def forward(self, s):
        h = self.tok(s) + self.pos(torch.arange(T))
        return self.head(self.body(h, mask=self.causal))


model = Writer()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y = strings(32)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 4 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
