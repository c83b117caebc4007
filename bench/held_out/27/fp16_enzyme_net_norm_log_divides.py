"""A net for the speed of enzymes, fp16 autocast with GradScaler, SGD with momentum. FAULT at step 70: a log of the norms of the gradients is switched on; it divides
each p.grad by the scale in place, and scaler.step divides them again: steps are 4096 times too small, the net stands still.
Without Rangewatch: loss 1.45 to 0.23 at step 69, 0.22 to 0.39 to the end; the middle weight moves by 1e-3 a step before and by 2.5e-6 after. Without the log: 0.12 to 0.18.
Cause: loss_scale (or no_gradient, learning_rate: the steps are next to nothing). Step: 70. Right: unscale / scale / twice. Wrong: attention mask, lower the learning rate."""
EXPECT = {"cause": ["loss_scale", "no_gradient"], "step": [69, 80], "place": None, "rank": None,
          "right": "(?i)unscal|scal|twice|divid", "wrong": ["attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2731); torch.set_num_threads(1)


def enzymes(n):
    x = torch.rand(n, 5) * 2
    substrate, half, block = x[:, :1] * 3, 0.3 + x[:, 1:2], x[:, 2:3]
    speed = (1 + x[:, 3:4]) * substrate / (half * (1 + block) + substrate)
    return x - 1, speed * 2 - 2 + 0.02 * torch.randn(n, 1)


net = nn.Sequential(nn.Linear(5, 96), nn.Softplus(), nn.Linear(96, 96), nn.Softplus(), nn.Linear(96, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.004, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
handle = rangewatch.attach(net, optimizer, scaler=scaler)


def norms():
    out = []
    for p in net.parameters():
        g = p.grad
        g /= scaler.get_scale()
        out.append(g.norm().item())
    return out


for step in range(220):
    x, y = enzymes(64)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    loss = nn.functional.mse_loss(out.float(), y)
    scaler.scale(loss).backward()
    record = norms() if step >= 70 else None
    before = net[2].weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step in (69, 70, 71, 219):
        print(step, loss.item(), "moved by", (net[2].weight - before).abs().max().item(), "norm", record[2] if record else None, flush=True)
    handle.log(loss=loss.item())
handle.detach()
