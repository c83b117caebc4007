"""A forecaster of hourly log returns (size 1e-3) under fp16 autocast. FAULT from the start: there is no GradScaler; as soon as the forecasts are of the size of
the returns, the gradients behind the last layer go below 6e-8 and are flushed to 0 in fp16; the net stops learning.
Without Rangewatch: loss 2.0e-6 to 4.7e-7 at step 75 and 5.2e-7 at the end, where the variance of the returns is 5.1e-7; all gradients of enc
and mid are 0, of out 1 to 3 in a hundred.
Cause: loss_scale, no_gradient or backward_arithmetic (underflow). Step: any. Right: GradScaler / loss scale / underflow / bf16. Wrong: attention mask."""
EXPECT = {"cause": ["loss_scale", "no_gradient", "backward_arithmetic"], "step": [0, 220], "place": None, "rank": None,
          "right": "(?i)GradScaler|loss[ _]scal|underflow|bf16|bfloat16|float32|fp32|scale", "wrong": ["attention mask", "all_?reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2914); torch.set_num_threads(1)
coupling = torch.randn(16, 16) / 4


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(16, 128)
        self.mid = nn.Linear(128, 128)
        self.out = nn.Linear(128, 16)
        nn.init.normal_(self.out.weight, std=1e-3); nn.init.zeros_(self.out.bias)

    def forward(self, x):
        return self.out(F.silu(self.mid(F.silu(self.enc(x)))))


def hours(n):
    z = torch.randn(n, 16)
    nxt = 1e-3 * (torch.sin(2 * z @ coupling) + 0.1 * torch.randn(n, 16))
    return z, nxt


net = Forecaster()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(250):
    x, y = hours(256)
    with torch.autocast("cpu", dtype=torch.float16):
        pred = net(x)
    loss = F.mse_loss(pred.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 249:
        zero = [(p.grad == 0).float().mean().item() for p in (net.enc.weight, net.mid.weight, net.out.weight)]
        print(step, loss.item(), "variance", y.var().item(), "share of zero gradients", zero, flush=True)
    handle.log(loss=loss.item())
handle.detach()
