"""An MLP that finds a bright point, fp16 autocast, with a hand-written static loss scale of 65536 (copied from another project). FAULT from the start: the gradients of the
fp16 layers pass 65504 and become inf; there is no check and no skipped step, after the first steps all weights are NaN.
Without Rangewatch: loss 168 at step 0 with gradients that are not finite, NaN from step 1 to the end.
Cause: loss_scale. Step: 0 to 10. Right: loss scale / GradScaler / overflow. Wrong: lower the learning rate, attention mask."""
EXPECT = {"cause": ["loss_scale", "backward_arithmetic"], "step": [0, 12], "place": None, "rank": None,
          "right": "(?i)loss.?scal|scaler|overflow|fp16|float16|half|static", "wrong": ["[Ll]ower the learning rate", "attention mask", "(?i)all_reduce"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(64); torch.set_num_threads(1)
LOSS_SCALE = 65536.0
grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))


def images(n):
    at = 2 + 12 * torch.rand(n, 2)
    blob = torch.exp(-((grid - at.view(n, 2, 1, 1)) ** 2).sum(1) / 4)
    return (blob + 0.1 * torch.randn(n, 16, 16))[:, None], at


net = nn.Sequential(
    nn.Flatten(), nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(160):
    x, at = images(32)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    loss = ((out.float() - at) ** 2).sum(1).mean()
    optimizer.zero_grad()
    (loss * LOSS_SCALE).backward()
    for p in net.parameters():
        p.grad.div_(LOSS_SCALE)
    optimizer.step()
    if step % 20 == 0 or step < 5:
        print(step, loss.item(), "finite gradient", all(torch.isfinite(p.grad).all().item() for p in net.parameters()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
