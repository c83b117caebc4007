"""Linear attention over a stream of symbols in float16: the state S (keys times values) is carried from step to step and nothing takes anything off it. FAULT from the start: the forgetting factor and the
normaliser were left out: S grows by the same amount each step, the read-out with it, until it passes 65504 and is Inf in float16.
Without Rangewatch: loss 3.02 to 0.89 at step 65; the read-out 758, 17088, 33088, 58560, 62976 at steps 0, 20, 40, 60, 65, Inf and loss NaN from 66.
Cause: forward_arithmetic. Step: growth from the start, Inf at the step named above. Right: float16 / grow / overflow / norm. Wrong: attention mask, all_reduce."""
EXPECT = {"cause": ["forward_arithmetic", "data", "weight"], "step": [0, 70], "place": None, "rank": None,
          "right": "(?i)float16|fp16|half|grow|overflow|norm|float32|bf16|bfloat16|range", "wrong": ["attention mask", "all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6126); torch.set_num_threads(1)
SYMBOLS, D = 20, 32


class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS, D)
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.ff = nn.Sequential(nn.Linear(2 * D, 64), nn.GELU(), nn.Linear(64, SYMBOLS))
        self.norm = nn.LayerNorm(D)

    def forward(self, ids, state):
        x = self.symbol(ids)
        q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
        state = state + torch.einsum("btd,bte->bde", k, v)
        read = torch.einsum("btd,bde->bte", q, state)
        return self.ff(torch.cat((x, self.norm(read.float())), 2)), state, read


rule = torch.stack([torch.randperm(SYMBOLS) for _ in range(4)])


def symbols(n, length, last):
    row = [last]
    for _ in range(length):
        turn = torch.randint(0, 4, (n,)) * (torch.rand(n) < 0.3)
        row.append(rule[turn, row[-1]])
    return torch.stack(row, 1)


net = Stream()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
state, last = torch.zeros(8, D, D, dtype=torch.float16), torch.randint(0, SYMBOLS, (8,))
for step in range(220):
    ids = symbols(8, 40, last)
    with torch.autocast("cpu", dtype=torch.float16):
        logits, new, read = net(ids[:, :-1], state)
    loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    state, last = new.detach(), ids[:, -1]
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "read", read.abs().max().item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
