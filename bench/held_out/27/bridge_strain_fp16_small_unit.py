"""A residual net that foretells the strain of a bridge from its load, under fp16 autocast (SGD with momentum, the head begins at 0). FAULT from the start: strain
is given as a pure number (some 1e-6), output and target are fp16: each squared error is below the least number of fp16 and is 0, its gradient 0 or one grain.
Without Rangewatch: the loss is 0.0 at every step, 99.6 to 100 % of the gradients are 0; the true error stays at 8e-7 where the spread of the strain is 1.5e-6.
Cause: data (unit of the target), loss_scale, forward_arithmetic, backward_arithmetic or no_gradient. Step: any. Right: scale / fp16 / underflow / target. Wrong: attention mask, lower the learning rate."""
EXPECT = {"cause": ["data", "loss_scale", "forward_arithmetic", "backward_arithmetic", "no_gradient"], "step": [0, 220], "place": None, "rank": None,
          "right": "(?i)scal|fp16|float16|half|underflow|target|unit|bf16|bfloat16|small|zero", "wrong": ["attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2706); torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


def bridge(n):
    place, load = torch.rand(n, 8), torch.rand(n, 8)
    moment = (load * torch.sin(3.14 * place)).sum(1, keepdim=True)
    return torch.cat((place, load), 1) - 0.5, 2e-6 * moment        # strain, m / m


net = nn.Sequential(nn.Linear(16, 64), Block(64), Block(64), nn.Linear(64, 1))
nn.init.zeros_(net[3].weight)
nn.init.zeros_(net[3].bias)
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    x, y = bridge(160)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
        loss = (out - y.half()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        zero = torch.cat([p.grad.flatten() for p in net.parameters()]).eq(0).float().mean().item()
        with torch.no_grad():
            x, y = bridge(512)
            error = (net(x) - y).abs().mean().item()
        print(step, loss.item(), "true error", error, "mean strain", y.mean().item(), "spread", y.std().item(), "gradients that are 0", zero, flush=True)
    handle.log(loss=loss.item())
handle.detach()
