"""Contrastive learning of pairs of noisy codes in float16 with a GradScaler. FAULT at step 133: a batch has one pair whose second half was recorded at 400 times the
volume; a gradient overflows float16, and the scaler leaves the step out and halves its scale. Training goes on unharmed.
Without Rangewatch: loss 3.88 to 0.73 at step 132, 275 at 133 (one step, left out), 0.72 at 134, 0.44 at the end; scale 4096 to 2048.
Cause: loss_scale or data, or none named. Step: 133. Right: scale / overflow / skipped. Wrong: attention mask, lower the learning rate."""
EXPECT = {"cause": ["loss_scale", "data", "(none)", "forward_arithmetic", "backward_arithmetic"], "step": [132, 136], "place": None, "rank": None, "least": "info",
          "right": "(?i)scale|overflow|skip|left out|float16|fp16|batch", "wrong": ["attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6110); torch.set_num_threads(1)
left, right = torch.randn(8, 40), torch.randn(8, 40)


class Twin(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 16))
        self.b = nn.Sequential(nn.Linear(40, 64), nn.LeakyReLU(), nn.Linear(64, 16))
        self.heat = nn.Parameter(torch.tensor(0.5))

    def forward(self, x, y):
        return self.a(x).float() @ self.b(y).float().T * self.heat.exp() / 16


def pairs(n):
    z = torch.randn(n, 8)
    return z @ left / 3 + 0.2 * torch.randn(n, 40), z @ right / 3 + 0.2 * torch.randn(n, 40)


net = Twin()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(210):
    x, y = pairs(48)
    if step == 133:
        y[17] *= 400
    with torch.autocast("cpu", dtype=torch.float16):
        logits = net(x, y)
        target = torch.arange(48)
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step in (132, 133, 134, 135, 209):
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
