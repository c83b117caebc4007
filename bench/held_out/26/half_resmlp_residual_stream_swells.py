"""A residual MLP in float16 autocast (no norm in the stream) that finds the direction of stripes. FAULT from the start: the penalty that should hold the residual stream
small has the wrong sign (`loss - 0.05 * log-energy`): the stream grows from step to step until it passes 65504 and is Inf in float16.
Without Rangewatch: loss 1.57 to -0.86 at step 120; the stream's largest value 2.0, 8, 26, 160, 1246, 3574, 36384 at steps 0, 20 .. 120, Inf and loss NaN
at step 138.
Cause: forward_arithmetic, regularization or weight. Step: the growth is there from the start, Inf at the step named above. Right: float16 / norm / grow / overflow.
Wrong: attention mask, all_reduce."""
EXPECT = {"cause": ["forward_arithmetic", "regularization", "weight", "learning_rate"], "step": [0, 141], "place": None, "rank": None,
          "right": "(?i)float16|fp16|half|grow|norm|overflow|bf16|bfloat16|range", "wrong": ["attention mask", "all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6116); torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.up, self.down = nn.Linear(c, 2 * c), nn.Linear(2 * c, c)

    def forward(self, x):
        return x + self.down(F.relu(self.up(x)))


class Stripes(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.stem = nn.Linear(256, c)
        self.blocks = nn.ModuleList(Residual(c) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(c), nn.Linear(c, 4)

    def forward(self, x):
        x = self.stem(x.flatten(1))
        for block in self.blocks:
            x = block(x)
        energy = x.float().square().mean()
        return self.head(self.norm(x.float())), energy, x.abs().max()


def stripes(n):
    kind = torch.randint(0, 4, (n,))
    a = (kind * 0.785)[:, None, None]
    phase = 6.28 * torch.rand(n, 1, 1)
    return torch.sin(1.2 * (xx * torch.cos(a) + yy * torch.sin(a)) + phase)[:, None] + 0.3 * torch.randn(n, 1, 16, 16), kind


net = Stripes()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(260):
    x, kind = stripes(32)
    with torch.autocast("cpu", dtype=torch.float16):
        logits, energy, top = net(x)
    loss = F.cross_entropy(logits.float(), kind) - 0.05 * torch.log(energy + 1e-6)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 259:
        print(step, loss.item(), "stream", top.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
