"""HEALTHY: bfloat16 autocast, gradients gathered over eight small batches before each step, then clipped at 1; the loss logged is that of the last small batch of three rows, so it
jumps about (heavy tails in the targets, a Huber loss), while the mean falls. Dropout of one half.
Without Rangewatch: mean loss 2.1 at first, 0.26 at step 40, 0.084 at the end (mean of 20 steps); the logged one is anything from 0.007 to 1.7.
Nothing is wrong."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2247); torch.set_num_threads(1)


class Rain(nn.Module):
    def __init__(self):
        super().__init__()
        self.sky = nn.Conv2d(2, 16, 3, padding=1)
        self.mix = nn.Conv2d(16, 16, 3, padding=1)
        self.drop, self.amount = nn.Dropout(0.5), nn.Linear(16 * 16, 1)

    def forward(self, x):
        h = nn.functional.gelu(self.mix(nn.functional.gelu(self.sky(x))))
        return self.amount(self.drop(nn.functional.avg_pool2d(h, 3).flatten(1)))[:, 0]


model = Rain()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
means = []
for step in range(200):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(8):
        x = torch.randn(3, 2, 12, 12) + 1.5 * torch.randn(3, 2, 1, 1)
        y = x[:, 0].mean((1, 2)) * 2 - x[:, 1].mean((1, 2)) + 0.1 * torch.distributions.StudentT(2.0).sample((3,))
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        loss = nn.functional.huber_loss(out.float(), y)
        (loss / 8).backward()
        total += loss.item() / 8
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    means.append(total)
    handle.log(loss=loss.item())
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "mean of the last 20 steps", sum(means[-20:]) / len(means[-20:]), flush=True)
handle.detach()
