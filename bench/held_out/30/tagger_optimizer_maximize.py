"""A GRU in both directions that tags words. FAULT from the start: the optimizer was taken over from a reward-driven script with `maximize=True`: it climbs the cross-entropy.
Without Rangewatch: loss 1.79 at step 0, 6.5 at step 80, 27 at the end; 0.15 of the tags are right.
Cause: optimizer, forward_arithmetic (sign) or learning_rate. Step: any. Right: sign / maximize / minus. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["optimizer", "forward_arithmetic", "learning_rate", "(none)"], "step": [0, 200], "place": None, "rank": None,
          "right": "(?i)sign|maximi[sz]|minus|negat|ascen|minimi", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3007); torch.set_num_threads(1)
tag_of = torch.randint(0, 5, (60,))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(60, 24)
        self.gru = nn.GRU(24, 32, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(64, 6)

    def forward(self, x):
        return self.tag(self.gru(self.words(x))[0])


def sentences(n):
    x = torch.randint(0, 60, (n, 14))
    tag = tag_of[x]
    after_article = torch.cat((torch.zeros(n, 1, dtype=torch.bool), tag[:, :-1] == 0), 1)
    return x, torch.where(after_article, torch.full_like(tag, 5), tag)


net = Tagger()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, maximize=True)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    x, y = sentences(32)
    out = net(x)
    loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "right", (out.argmax(-1) == y).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
