"""A mixture of four experts (top-2 routing) that fits a piecewise function of eight inputs. FAULT at step 115: the top bit of the exponent of one weight of expert 2 flips in memory, a
weight of some 0.0x becomes one of 1e36 or more.
Without Rangewatch: loss 2.0 to 1.16 at step 114, inf at step 115 (the weight is 2.4e37), NaN from step 116 to the end.
Cause: hardware or weight. Step: 115. Place: experts.2. Right: bit flip / hardware / weight changed outside the optimizer / checkpoint. Wrong: lower the learning rate, GradScaler, data."""
EXPECT = {"cause": ["hardware", "weight"], "step": [114, 117], "place": "experts\\.2.*", "rank": None,
          "right": "(?i)bit|hardware|memory|outside|overwrit|corrupt|checkpoint", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(86); torch.set_num_threads(1)


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)) for _ in range(4))

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        top, idx = probs.topk(2, -1)
        top = top / top.sum(-1, keepdim=True)
        out = torch.zeros(len(x), 1)
        for e, expert in enumerate(self.experts):
            rows, slot = (idx == e).nonzero(as_tuple=True)
            out = out.index_add(0, rows, top[rows, slot, None] * expert(x[rows]))
        load = F.one_hot(idx, 4).float().mean((0, 1))
        return out, 4 * (load * probs.mean(0)).sum()


def piecewise(n):
    x = torch.randn(n, 8)
    region = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    slope = torch.tensor([[1.0, -1, 0.5], [-1, 0.3, 1], [0.2, 1, -1], [1, 1, 1]])
    return x, (slope[region] * x[:, 2:5]).sum(1, keepdim=True)


net = MoE()
optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(190):
    x, y = piecewise(128)
    if step == 115:
        bits = net.experts[2][0].weight.data.view(torch.int32)
        bits[17, 3] ^= 1 << 30
    out, balance = net(x)
    loss = F.mse_loss(out, y) + 0.01 * balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 112 < step < 120:
        print(step, loss.item(), net.experts[2][0].weight.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
