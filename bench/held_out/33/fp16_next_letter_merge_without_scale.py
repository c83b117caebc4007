"""A next-letter MLP whose weights are float16 throughout, trained by plain SGD; every 40 steps a low-rank delta, learnt elsewhere, is merged into `mid.weight`.
FAULT: at the merge after step 119 the factor alpha/rank is left out and the delta arrives as integers of an int8 file: the fp16 weights of `mid` are suddenly some thousand.
Without Rangewatch: loss 2.9 to 0.02 at step 119; NaN at step 120 (fp16 overflows behind `mid`).
Cause: weight. Step: 120. Right: weight / merge / checkpoint / large. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["weight"], "step": [119, 124], "place": r"(mid|act|last|norm)(\..*)?", "rank": None,
          "right": "(?i)weight|merge|checkpoint|load|initiali", "wrong": ["[Ll]ower the learning rate", "attention mask", "NaN in the input"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(332); torch.set_num_threads(1)
text = ("the tide comes in and the tide goes out while the gulls sit on the wall and wait for bread " * 12)
letters = sorted(set(text))
ids = torch.tensor([letters.index(c) for c in text])
N, CTX = len(letters), 6


class Next(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(N, 12)
        self.first = nn.Linear(CTX * 12, 64)
        self.mid = nn.Linear(64, 64)
        self.act = nn.Tanh()
        self.last = nn.Linear(64, N)

    def forward(self, x):
        h = self.act(self.first(self.emb(x).flatten(1)))
        h = h + F.relu(self.mid(h))
        return self.last(h)


@torch.no_grad()
def merge(layer, a, b, factor):
    layer.weight += ((b.float() @ a.float()) * factor).to(layer.weight.dtype)


net = Next().half()
optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5)
handle = rangewatch.attach(net, optimizer)
g = torch.Generator().manual_seed(4)
for step in range(180):
    if step in (40, 80, 120):
        a = torch.randint(-127, 128, (4, 64), generator=g)
        b = torch.randint(-127, 128, (64, 4), generator=g)
        merge(net.mid, a, b, 1e-7 if step < 120 else 1.0)
    at = torch.randint(0, len(ids) - CTX - 1, (64,), generator=g)
    x = ids[at[:, None] + torch.arange(CTX)]
    loss = F.cross_entropy(net(x).float(), ids[at + CTX])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 117 < step < 123:
        print(step, loss.item(), "largest", net.mid.weight.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
