"""Counts of insurance claims, about a thousand a row, by a Poisson likelihood that begins at a rate of one: losses of 20000 at the start, a warm-up of 100
steps, uneven microbatches summed and divided by the rows, gradients clipped at 100 all the time. HEALTHY.
Without Rangewatch: loss 23758, 492 at step 100, 71 at step 200, 11 to 45 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(832); torch.set_num_threads(1)
effect = torch.randn(16) * 0.25


class Claims(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


model = Claims()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 100))
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    optimizer.zero_grad()
    total = 0.0
    rows = 96 if step % 25 else 17  # the last batch of an epoch is short
    for x in torch.randn(rows, 16).split(32):  # microbatches, some of them uneven
        count = torch.poisson(torch.exp(7.0 + x @ effect))
        loss = F.poisson_nll_loss(model(x), count, full=True, reduction="sum") / rows
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 100.0)
    optimizer.step()
    scheduler.step()
    if step % 25 == 0 or step == 299:
        print(step, total, flush=True)
    handle.log(loss=total)
handle.detach()
