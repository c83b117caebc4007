"""Fine-tuning with the whole model in bfloat16 (weights, gradients, AdamW), learning rate 3e-5. FAULT from step 0: an update of 3e-5 is less than half the
distance of two neighbouring bfloat16 numbers for every weight above some 0.015, so it is rounded away: nine weights in ten never change, the norms' gains
(1.0) not one; the loss stays where it was, in float32 it falls. Nothing is NaN, no gradient is zero. Report: pytorch/ao#1124 (an update below 1e-3 of the
weight changes nothing in bf16), pytorch/pytorch#120376, zyushun/Adam-mini#26.
Cause: optimizer (its updates are lost to rounding), from step 0. Right: float32 master weights / Kahan summation / stochastic rounding. Wrong: lower the
learning rate, mask, data."""
EXPECT = {"cause": ["optimizer"], "step": [0, 120], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "leave out samples", "larger eps"], "right": "float32|fp32|master|Kahan|stochastic"}
import sys
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(13)
torch.set_num_threads(1)


class GatedMLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.RMSNorm(d)
        self.gate, self.up, self.down = nn.Linear(d, 2 * d, bias=False), nn.Linear(d, 2 * d, bias=False), nn.Linear(2 * d, d, bias=False)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Ranker(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.inp = nn.Linear(40, d)
        self.layers = nn.Sequential(*[GatedMLP(d) for _ in range(3)])
        self.norm = nn.RMSNorm(d)
        self.score = nn.Linear(d, 12)

    def forward(self, x):
        return self.score(self.norm(self.layers(self.inp(x))))


def examples(table, n=64):
    y = torch.randint(0, 12, (n,))
    return table[y] + 1.5 * torch.randn(n, 40), y


base, domain = torch.randn(12, 40), torch.randn(12, 40)
model = Ranker()
pretrain = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _ in range(150):
    x, y = examples(base)
    loss = F.cross_entropy(model(x), y)
    pretrain.zero_grad(); loss.backward(); pretrain.step()
print("pretrained", loss.item())

dtype = torch.float32 if "--float32" in sys.argv else torch.bfloat16
model = model.to(dtype)
opt = torch.optim.AdamW(model.parameters(), lr=3e-5, weight_decay=0.0)
watch = rangewatch.attach(model, opt)
start = [p.detach().clone() for p in model.parameters()]
mixed = 0.75 * base + 0.45 * domain
for step in range(260):
    x, y = examples(mixed)
    loss = F.cross_entropy(model(x.to(dtype)).float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or step == 259:
        same = sum((p == s).sum().item() for p, s in zip(model.parameters(), start)) / sum(s.numel() for s in start)
        print(step, round(loss.item(), 4), f"unchanged {same:.3f}")
