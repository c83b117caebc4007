"""A super-resolution net in float16 autocast with a GradScaler, SGD. FAULT from step 40 on: to log true norms somebody divides the gradients by the
scale by hand; scaler.step then divides a second time. Every update is 1 / 16384 of what it should be: the training stands still, nothing overflows.
Without Rangewatch: loss 0.27 to 0.10 at step 40, 0.05 to 0.11 without a trend after; the weights hardly change from step 60 on (the rest is
momentum).
Report: languini-kitchen/languini-kitchen#7 (unscale gradients before logging), pytorch/pytorch#26512 (why unscale_ may be called only once).
Cause: loss_scale. Step: 40. Right: scale / unscale / GradScaler. Wrong: learning rate lower, mask, data order."""
EXPECT = {"cause": ["loss_scale"], "step": [40, 120], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "shuffl"],
          "right": "scal|GradScaler"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(820); torch.set_num_threads(1)


def pictures(n=16):
    w = torch.randn(n, 3, 1, 1)
    grid = torch.linspace(-3, 3, 16)
    fine = torch.sin(w[:, :1] * grid[:, None] + 2 * w[:, 1:2] * grid[None]) * torch.cos(w[:, 2:] * grid[None])
    return F.avg_pool2d(fine, 2), fine


model = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 4, 3, padding=1),
                      nn.PixelShuffle(2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14, growth_interval=2000)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(280):
    coarse, fine = pictures()
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(coarse)
    loss = F.mse_loss(out.float(), fine)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if step >= 40:
        for p in model.parameters():
            p.grad.div_(scaler.get_scale())  # for the log
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    scaler.step(optimizer)
    scaler.update()
    handle.log(loss=loss.item(), norm=norm.item())
    if step % 20 == 0:
        print(step, loss.item(), "norm", norm.item(), "weights", model[0].weight.abs().sum().item(), flush=True)
handle.detach()
