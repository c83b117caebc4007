"""A causal transformer trained by Muon for the matrices (Newton-Schulz with an eps, updates of norm about one, weight decay) and Adam for embeddings,
norms and the head; projections out of each branch start at zero, so that what is before them has gradients of exactly 0 in the first step; the rate
is held and then falls linearly to 0. HEALTHY. Without Rangewatch: loss 3.58 to 1.7, by the batch."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(526); torch.set_num_threads(1)
VOCAB, D, T, STEPS = 36, 48, 24, 260


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp(buffer, group["momentum"])
                g = g if g.shape[0] <= g.shape[1] else g.T
                x = g / (g.norm() + 1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                p.mul_(1 - 0.1 * group["lr"])
                p.add_(x if p.shape[0] <= p.shape[1] else x.T, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.qkv, self.out = nn.RMSNorm(D), nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.norm2, self.wi, self.wo = nn.RMSNorm(D), nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)
        nn.init.zeros_(self.out.weight); nn.init.zeros_(self.wo.weight)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (4, 12)).transpose(1, 2) for each in self.qkv(self.norm1(x)).chunk(3, -1))
        q, k = F.rms_norm(q, (12,)), F.rms_norm(k, (12,))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.wo(F.relu(self.wi(self.norm2(x))).square())


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCAB, D), nn.Parameter(0.1 * torch.randn(T, D))
        self.blocks, self.norm, self.head = nn.Sequential(Block(), Block()), nn.RMSNorm(D), nn.Linear(D, VOCAB)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.embed(ids) + self.position)))


model = LM()
hidden = [p for n, p in model.named_parameters() if n.startswith("blocks") and p.ndim == 2]
rest = [p for n, p in model.named_parameters() if not (n.startswith("blocks") and p.ndim == 2)]
optimizers = [Muon(hidden, lr=0.02), torch.optim.Adam(rest, lr=3e-3, betas=(0.8, 0.95))]
schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: min(1.0, (STEPS - s) / 100)) for o in optimizers]
handle = rangewatch.attach(model, optimizers)
follows = torch.randint(0, VOCAB, (VOCAB, VOCAB))
for step in range(STEPS):
    ids = torch.randint(0, VOCAB, (16, T + 1))
    for t in range(2, T + 1):
        known = torch.rand(16) < 0.8
        ids[known, t] = follows[ids[known, t - 2], ids[known, t - 1]] // 3
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    for each in optimizers:
        each.zero_grad()
    loss.backward()
    for each in optimizers + schedules:
        each.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(step, loss.item(), flush=True)
handle.detach()
