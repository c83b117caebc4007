"""A residual MLP trained by a Muon written by hand (momentum, five Newton-Schulz steps; Adam for the rest); bottleneck adapters join later. FAULT at
step 120: the adapters are thawed; their `up` starts at zero, so that `down` has a gradient of exactly 0 in its first step, and Newton-Schulz
divides it by its norm without an eps: 0 / 0 is NaN in the update. Without Rangewatch: loss 2.19 to 0.28 at step 119, 0.32 at step 120 (finite, as
is its backward), NaN at step 121: the three matrices `down` are NaN.
Report: microsoft/dion#24 (NaN when some weight matrices have zero gradients, as behind a zero-initialized projection),
NVIDIA-NeMo/Emerging-Optimizers#254.
Cause: optimizer, by its own arithmetic; forward and backward of step 120 are finite. Place: an adapter's down. Right: eps / norm of zero / divide /
optimizer. Wrong: learning rate, data, mask, GradScaler."""
EXPECT = {"cause": ["optimizer"], "step": [120, 121], "place": r"blocks\.\d\.adapter.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "leave out samples", "[Mm]ask"],
          "right": "eps|divi|zero|norm|optimizer"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(502); torch.set_num_threads(1)
D = 48


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(D, 8, bias=False), nn.Linear(8, D, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.up(F.gelu(self.down(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wi, self.wo = nn.LayerNorm(D), nn.Linear(D, 96), nn.Linear(96, D)
        self.adapter = Adapter()

    def forward(self, x):
        h = self.wo(F.gelu(self.wi(self.norm(x))))
        return x + h + self.adapter(h)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.blocks, self.head = nn.Linear(20, D), nn.Sequential(*[Block() for _ in range(3)]), nn.Linear(D, 8)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                g = buffer if p.shape[0] <= p.shape[1] else buffer.T
                x = g / g.norm()
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                p.add_(x if p.shape[0] <= p.shape[1] else x.T, alpha=-group["lr"])


model, teacher = Net(), nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 8))
for name, p in model.named_parameters():
    p.requires_grad_("adapter" not in name)
hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "blocks" in n]
rest = [p for n, p in model.named_parameters() if not (p.ndim == 2 and "blocks" in n)]
muon, adam = Muon(hidden), torch.optim.Adam(rest, lr=2e-3)
handle = rangewatch.attach(model, [muon, adam])
for step in range(240):
    if step == 120:
        model.requires_grad_(True)
    x = torch.randn(128, 20)
    y = (3 * teacher(x)).argmax(1)
    loss = F.cross_entropy(model(x), y)
    muon.zero_grad(); adam.zero_grad()
    loss.backward()
    muon.step(); adam.step()
    if step % 20 == 0 or step in (119, 120, 121):
        print(step, loss.item(), flush=True)
handle.detach()
