"""Gradient checkpointing, model in fp16 (.half()), own RMSNorm that squares in fp16; SGD. FAULT from step 110: the embedding multiplier
becomes 16x (muP change): |x| > 256, x^2 overflows to Inf within the first norm; rsqrt(Inf) = 0: output is 0, finite! Inf is seen only in
the module Square mean, which is a module here (blocks.0.norm.power). Cause: forward_arithmetic (overflow of fp16), step 110, place
blocks.0.norm.power. Right: that module in float32. Wrong: learning rate, mask, batch, weight."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [110, 110], "place": r"blocks\.0\.norm(\.power)?", "rank": 0,
          "wrong": ["learning rate", "[Mm]ask", "leave out samples", "tensors of the checkpoint"], "right": "float32|bfloat16"}
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class MeanSquare(nn.Module):
    def forward(self, x):
        return x.pow(2).mean(-1, keepdim=True)

class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.power, self.weight = MeanSquare(), nn.Parameter(torch.ones(d))
    def forward(self, x):
        return x * torch.rsqrt(self.power(x) + 1e-5) * self.weight

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.gate, self.up, self.down = RMSNorm(d), nn.Linear(d, 2 * d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embed, self.blocks, self.last, self.head = nn.Embedding(30, d), nn.ModuleList(Block(d) for _ in range(3)), RMSNorm(d), nn.Linear(d, 30)
        self.mult = 8.0
    def forward(self, ids):
        x = self.embed(ids) * self.mult
        for blk in self.blocks:
            x = checkpoint(blk, x, use_reentrant=False)
        return self.head(self.last(x))

net = Net().half()
opt = torch.optim.SGD(net.parameters(), 0.05)
watch = rangewatch.attach(net, opt)
perm = torch.randperm(30)
for step in range(200):
    if step == 110:
        net.mult = 160.0
    ids = torch.randint(0, 30, (8, 12))
    logits = net(ids)
    loss = F.cross_entropy(logits.float().flatten(0, 1), perm[ids].flatten())
    watch.log(loss=loss.item())
    opt.zero_grad()
    (loss * 8).backward()
    for p in net.parameters():
        p.grad.div_(8)
    opt.step()
