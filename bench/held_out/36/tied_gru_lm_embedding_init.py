"""A GRU language model on a synthetic grammar; the output layer is tied to the embedding, which keeps nn.Embedding's default N(0, 1). Adam.
FAULT at step 0: natural. With D=256 the tied head's logits have a standard deviation of many units: the first loss is far above ln(V) (5.3) and the run first unlearns it.
Without Rangewatch: loss 43.5 at step 0 (ln V = 5.3), under 5.3 only after step 90, 3.5 at step 159; with std 0.02 it is 1.75 at step 159.
Cause: weight (initialisation). Step: 0 to 20. Right: smaller init (std 0.02) / loss above ln V. Wrong: GradScaler, attention mask, zero_grad."""
EXPECT = {"cause": ["weight"], "step": [0, 20], "place": r"(embed|decoder|project|readout)(\..+)?", "rank": None,
          "right": r"(?i)init|std|uniform guess|ln ?\(?V|log\(", "wrong": ["GradScaler", "(?i)attention mask", r"(?i)call .{0,20}zero_grad", "(?i)raise the learning rate"]}
import math
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(256)
torch.set_num_threads(1)
V, D, T = 200, 256, 16
successors = torch.randint(0, V, (V, 4))


def corpus(n):
    ids = torch.randint(0, V, (n, 1))
    for _ in range(T):
        ids = torch.cat([ids, successors[ids[:, -1], torch.randint(0, 4, (n,))][:, None]], 1)
    return ids[:, :-1], ids[:, 1:]


class TiedGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.rnn = nn.GRU(D, 64, batch_first=True)
        self.project = nn.Sequential(nn.Linear(64, D), nn.LayerNorm(D))
        self.decoder = nn.Linear(D, V, bias=False)
        self.decoder.weight = self.embed.weight

    def forward(self, ids):
        return self.decoder(self.project(self.rnn(self.embed(ids))[0]))


lm = TiedGRU()
opt = torch.optim.Adam(lm.parameters(), lr=1e-3)
handle = rangewatch.attach(lm, opt)
print("ln V", math.log(V))
for step in range(160):
    x, y = corpus(16)
    loss = F.cross_entropy(lm(x).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step in (0, 5, 10) or step % 20 == 0 or step == 159:
        print("step", step, "nll", round(loss.item(), 3), flush=True)
    handle.log(loss=loss.item())
handle.detach()
