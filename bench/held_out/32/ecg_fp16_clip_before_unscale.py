"""A 1-d convnet tells four kinds of heart beat under float16 autocast with a GradScaler, SGD with momentum. FAULT from step 0: `clip_grad_norm_` is called on the scaled gradients (no `scaler.unscale_` before it): the scaled norm, some 65536 times too
large, is cut to 1 and then divided by 65536; the weights hardly move.
Without Rangewatch: loss 1.45 to 1.36, never better; the head moved by 0.0008 (with unscale_: loss 0.02 at step 80).
Cause: loss_scale / clip. Step: from 0, shows slowly. Right: unscale_ before the clip. Wrong: lower the learning rate, attention mask."""
EXPECT = {"cause": ["loss_scale", "clip"], "step": [0, 80], "place": None, "rank": None,
          "right": "(?i)unscale", "wrong": ["[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(408); torch.set_num_threads(1)
t = torch.linspace(0, 1, 64)


def beats(n):
    y = torch.randint(0, 4, (n,))
    shift = 0.1 * torch.rand(n, 1)
    width = torch.tensor([0.03, 0.08, 0.03, 0.08])[y][:, None]
    second = torch.tensor([0.0, 0.0, 0.7, 0.7])[y][:, None]
    x = torch.exp(-((t - 0.3 - shift) / width) ** 2) + second * torch.exp(-((t - 0.7 - shift) / 0.05) ** 2)
    return (x + 0.15 * torch.randn(n, 64))[:, None], y


class Beats(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(1, 12, 7, stride=2, padding=3), nn.Conv1d(12, 24, 5, stride=2, padding=2)
        self.norm = nn.GroupNorm(4, 24)
        self.head = nn.Linear(24 * 4, 4)

    def forward(self, x):
        h = F.leaky_relu(self.c2(F.leaky_relu(self.c1(x))))
        return self.head(F.adaptive_avg_pool1d(self.norm(h), 4).flatten(1))


model = Beats()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
handle = rangewatch.attach(model, optimizer)
start = model.head.weight.detach().clone()
for step in range(180):
    x, y = beats(32)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), "norm", norm.item(), "head moved", (model.head.weight - start).norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
