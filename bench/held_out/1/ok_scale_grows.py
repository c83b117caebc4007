"""HEALTHY: fp16 autocast, residual MLP for regression with large targets; GradScaler from 128 with growth each 12 steps: the scale climbs until
the gradients overflow, a step is skipped, the scale halves, and so on: some skips in 320 steps, loss goes down all along."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Net(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.inp, self.out = nn.Linear(20, d), nn.Linear(d, 1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(4))
    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)

net = Net()
opt = torch.optim.AdamW(net.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=12)
watch = rangewatch.attach(net, opt, scaler=scaler)
weight = torch.randn(20, 1)
for step in range(320):
    x = torch.randn(64, 20)
    y = (x @ weight).sin() * 3 + x[:, :1]
    with torch.autocast("cpu", dtype=torch.float16):
        pred = net(x)
    loss = F.mse_loss(pred.float(), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    scaler.step(opt); scaler.update()
    watch.log(loss=loss.item(), scale=scaler.get_scale())
    if step % 20 == 0:
        print(step, loss.item(), scaler.get_scale())
