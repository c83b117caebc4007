"""A small vision transformer that was trained by AdamW at 2e-2 and is now trained by Lion, whose updates are signs. FAULT: the rate was taken over as
it was, with a linear warmup over 120 steps; Lion wants a third to a tenth of it. It learns while the rate is low, then every layer moves by more
than its weights are large. Without Rangewatch: loss 2.1 to 0.36 at step 70, where the rate is 0.012, then up: 0.83 at step 80, 1.1 at 120, 1.7 at
160, 2.5 at 190.
Report: lucidrains/denoising-diffusion-pytorch#170 ("lion works very bad when I directly replace adamw with lion"), lucidrains/lion-pytorch#3,
mlfoundations/open_clip#432.
Cause: learning rate. Right: lower the learning rate / schedule / peak. Wrong: data, mask, GradScaler, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [20, 239], "place": None, "rank": 0,
          "wrong": ["leave out samples", "GradScaler", "bfloat16", "[Mm]ask"],
          "right": "learning rate|schedul|warm|peak"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(509); torch.set_num_threads(1)
D = 64


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(m * b1 + p.grad * (1 - b1)), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(D), nn.MultiheadAttention(D, 4, batch_first=True)
        self.norm2, self.mlp = nn.LayerNorm(D), nn.Sequential(nn.Linear(D, 128), nn.GELU(), nn.Linear(128, D))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.position = nn.Conv2d(1, D, 4, 4), nn.Parameter(torch.randn(16, D) * 0.02)
        self.blocks, self.norm, self.head = nn.Sequential(Block(), Block(), Block()), nn.LayerNorm(D), nn.Linear(D, 8)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(x)).mean(1))


model, centres = ViT(), torch.randn(8, 1, 16, 16)
optimizer = Lion(model.parameters(), lr=2e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 120))
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    y = torch.randint(0, 8, (48,))
    loss = F.cross_entropy(model(centres[y] + 1.5 * torch.randn(48, 1, 16, 16)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 10 == 0:
        print(step, loss.item(), schedule.get_last_lr()[0], flush=True)
handle.detach()
