"""A small decoder over characters with a hand-written AdamW, warmup and cosine, gradients clipped. FAULT from step 0: the decoupled decay is p.mul_(1
- weight_decay) where p.mul_(1 - lr * weight_decay) is meant, with the usual 0.1: every step takes a tenth of every weight away. Without Rangewatch:
loss 3.31 to 3.14 at step 20, then slowly up to 3.176 at step 220 (ln of 24 characters is 3.178); the mean size of the head's weights falls from
0.056 to 0.0016.
Report: pytorch/pytorch#4429 (the decay is not multiplied by the learning rate in the proposed AdamW), kozistr/pytorch_optimizer#170.
Cause: optimizer, its weight decay. Right: multiply by lr / less decay. Wrong: raise or lower the learning rate, data, mask, precision."""
EXPECT = {"cause": ["optimizer"], "step": [0, 150], "place": None, "rank": 0,
          "wrong": ["[Mm]ask", "bfloat16", "GradScaler", "loss scale", "leave out samples", "[Ll]ower the learning rate"],
          "right": "decay"}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(21); torch.set_num_threads(1)
TEXT = ("the agent in the process writes what each layer does and the server reads it back; when a run breaks it says which layer, "
        "which rank, which step and why. a run that does not break says nothing. ") * 3
CHARS = sorted(set(TEXT))
DATA = torch.tensor([CHARS.index(c) for c in TEXT])


class AdamW(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            (b1, b2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                state["step"] += 1
                p.mul_(1 - group["weight_decay"])
                m = state["exp_avg"].mul_(b1).add_(p.grad, alpha=1 - b1)
                v = state["exp_avg_sq"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                root = (v / (1 - b2 ** state["step"])).sqrt_().add_(group["eps"])
                p.addcdiv_(m, root, value=-lr / (1 - b1 ** state["step"]))


class Decoder(nn.Module):
    def __init__(self, d=64, n=24):
        super().__init__()
        self.tok, self.pos = nn.Embedding(len(CHARS), d), nn.Embedding(n, d)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(d, 4, 4 * d, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, len(CHARS))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(n))

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return self.head(self.norm(x))


model = Decoder()
optimizer = AdamW(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * s / 240)))
watch = rangewatch.attach(model, optimizer)
for step in range(240):
    at = torch.randint(0, len(DATA) - 25, (16, 1)) + torch.arange(25)
    loss = F.cross_entropy(model(DATA[at[:, :-1]]).flatten(0, 1), DATA[at[:, 1:]].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(); schedule.step()
    watch.log(loss=loss.item())
    if step % 20 == 0:
        print(step, round(loss.item(), 4), round(model.head.weight.abs().mean().item(), 5), "of", round(math.log(len(CHARS)), 3))
