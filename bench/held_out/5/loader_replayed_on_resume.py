"""A language model of time-stamped events (a GRU), trained once through a long stream, batches in a fixed shuffled order. FAULT at step 120: the run
is resumed, weights, moments and schedule come back, the loader does not: its generator has the seed it began with and the stream starts again: step
120 + n gets the batch of step n. Without Rangewatch: loss 3.5 to 1.38 at step 119 and 1.35 at the end, without a jump; the batches of steps 120 to
239 are those of 0 to 119 to the bit.
Report: kyutai-labs/pocket-tts#287 (every relaunch replays the same permutation from position zero), huggingface/accelerate#2016,
huggingface/accelerate#1002.
Cause: data (batches come again). Step: 120 or soon after. Right: loader / skip / seed / epoch / same batches. Wrong: learning rate, mask,
GradScaler, bfloat16."""
EXPECT = {"cause": ["data"], "step": [119, 239], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "bfloat16", "[Mm]ask"],
          "right": "shuffl|seed|sampler|loader|again|epoch|skip|resum|order"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(518); torch.set_num_threads(1)
KINDS, T, ROWS = 24, 20, 16 * 400


class Events(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gap = nn.Embedding(KINDS, 32), nn.Linear(1, 32)
        self.rnn, self.kind, self.when = nn.GRU(32, 96, batch_first=True), nn.Linear(96, KINDS), nn.Linear(96, 1)

    def forward(self, kinds, gaps):
        h = self.rnn(self.embed(kinds) + self.gap(gaps.unsqueeze(-1)))[0]
        return self.kind(h), self.when(h).squeeze(-1)


follows = torch.randint(0, KINDS, (KINDS, 4))
kinds = torch.empty(ROWS, T + 1, dtype=torch.long)
kinds[:, 0] = torch.randint(0, KINDS, (ROWS,))
for t in range(T):
    kinds[:, t + 1] = follows[kinds[:, t], torch.randint(0, 4, (ROWS,))]
gaps = (kinds.float() / KINDS + 0.3 * torch.randn(ROWS, T + 1)).abs()


def loader():
    return torch.randperm(ROWS, generator=torch.Generator().manual_seed(0)).split(16)


model = Events()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
batches = iter(loader())
for step in range(240):
    if step == 120:
        batches = iter(loader())
    rows = next(batches)
    kind, when = model(kinds[rows, :-1], gaps[rows, :-1])
    loss = F.cross_entropy(kind.flatten(0, 1), kinds[rows, 1:].flatten()) + F.smooth_l1_loss(when, gaps[rows, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (119, 239):
        print(step, loss.item(), int(rows[0]), flush=True)
handle.detach()
