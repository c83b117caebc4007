"""Next letter of a synthetic verse, stateful GRU (the hidden state goes on from chunk to chunk), AdamW, clip 1.0.
FAULT at step 1: the hidden state is carried over without detach(): the second backward wants to go through the graph of the first chunk.
Without Rangewatch: losses 2.90 and 2.83 of chunks 0 and 1, then RuntimeError: Trying to backward through the graph a second time.
Cause: crash (backward through a freed graph) / backward_arithmetic. Step: 1. Right: hidden = hidden.detach(). Wrong: GradScaler, lower the learning rate, attention mask."""
EXPECT = {"cause": ["crash", "backward_arithmetic"], "step": [0, 2], "place": None, "rank": None,
          "right": r"(?i)detach|second time|freed|retain_graph|hidden", "wrong": ["GradScaler", r"(?i)lower the learning rate", r"(?i)attention mask"]}
import random
import torch
from torch import nn
import rangewatch

random.seed(3); torch.manual_seed(3)
torch.set_num_threads(1)
WORDS = "the rain sea over under stone light a old bird sings falls and then of it by night".split()
text = " ".join(random.choice(WORDS) for _ in range(9000))
alphabet = sorted(set(text))
codes = torch.tensor([alphabet.index(c) for c in text])
LANES, CHUNK = 16, 25
lanes = codes[: len(codes) // LANES * LANES].view(LANES, -1)


class VerseGRU(nn.Module):
    def __init__(self, n, d=64):
        super().__init__()
        self.emb = nn.Embedding(n, 24)
        self.gru = nn.GRU(24, d, batch_first=True)
        self.out = nn.Linear(d, n)

    def forward(self, x, h):
        y, h = self.gru(self.emb(x), h)
        return self.out(y), h


model = VerseGRU(len(alphabet))
opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, opt)
hidden = torch.zeros(1, LANES, 64)
for step in range(150):
    at = step * CHUNK % (lanes.shape[1] - CHUNK - 1)
    x, y = lanes[:, at:at + CHUNK], lanes[:, at + 1:at + CHUNK + 1]
    logits, hidden = model(x, hidden)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    print(f"chunk {step} loss {loss.item():.4f}", flush=True)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    handle.log(loss=loss.item())
handle.detach()
