"""HEALTHY: residual MLP with stochastic depth (whole blocks skipped), gradient accumulation of 2 (one attach), fp16 autocast with a scaler that
starts at 2^24 and grows each 60 steps; 400 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Res(nn.Module):
    def __init__(self, d, p):
        super().__init__()
        self.norm, self.a, self.b, self.p = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d), p
    def forward(self, x):
        if self.training and torch.rand(()) < self.p:
            return x
        return x + self.b(F.relu(self.a(self.norm(x))) ** 2)

net = nn.Sequential(nn.Linear(16, 48), *(Res(48, 0.1 * i) for i in range(5)), nn.LayerNorm(48), nn.Linear(48, 6))
opt = torch.optim.AdamW(net.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=60)
watch = rangewatch.attach(net, opt, scaler=scaler)
protos = torch.randn(6, 16)
for step in range(400):
    for micro in range(2):
        y = torch.randint(0, 6, (24,))
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(net(protos[y] + torch.randn(24, 16)).float(), y) / 2
        scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    watch.log(loss=loss.item() * 2)
