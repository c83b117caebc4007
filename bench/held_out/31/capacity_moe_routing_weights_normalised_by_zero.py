"""A top-2 mixture of experts with a capacity per expert labels points of a spiral (AdamW); the weights of the two chosen experts that had room are divided by their sum.
FAULT: at step 140 the capacity factor falls from 4.0 to 0.6 ("production setting"): for some points both experts are full, both weights are 0 and 0 / 0 is NaN.
Without Rangewatch: loss 1.22 to 0.06 at step 139, NaN at step 140.
Cause: forward_arithmetic (division by zero). Step: 140. Right: division / zero / eps / clamp / norm. Wrong: lower the learning rate, attention mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [139, 144], "place": None, "rank": None,
          "right": "(?i)divi|zero|eps|clamp|0/0|normali", "wrong": ["[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(113); torch.set_num_threads(1)
E, W = 4, 24


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(W, E, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(W, 32), nn.GELU(), nn.Linear(32, W)) for _ in range(E))
        self.factor = 4.0

    def forward(self, h):
        gate, chosen = self.router(h).softmax(-1).topk(2, -1)
        room = int(self.factor * len(h) * 2 / E)
        hot = F.one_hot(chosen, E)
        place = hot.sum(1).cumsum(0)[torch.arange(len(h))[:, None], chosen]
        gate = gate * (place <= room)
        gate = gate / gate.sum(-1, keepdim=True)
        share = (hot * gate[..., None]).sum(1)
        return h + torch.einsum("be,bew->bw", share, torch.stack([e(h) for e in self.experts], 1))


net = nn.Sequential(nn.Linear(2, W), nn.Tanh(), Block(), nn.LayerNorm(W), nn.Linear(W, 3))
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(170):
    if step == 140:
        net[2].factor = 0.6
    y, r = torch.randint(0, 3, (96,)), torch.rand(96)
    t = 4 * r + 2.094 * y
    x = torch.stack([r * t.cos(), r * t.sin()], 1) * 2 + 0.05 * torch.randn(96, 2)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 138 < step < 143:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
