"""HEALTHY: manual mixed precision: bf16 model, fp32 master weights in the optimizer, copied back after each step; 400 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Mixer(nn.Module):
    def __init__(self, tokens=9, d=32, classes=6):
        super().__init__()
        self.embed = nn.Linear(12, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(4))
        self.token = nn.ModuleList(nn.Sequential(nn.Linear(tokens, 24), nn.GELU(), nn.Linear(24, tokens)) for _ in range(2))
        self.channel = nn.ModuleList(nn.Sequential(nn.Linear(d, 64), nn.GELU(), nn.Linear(64, d)) for _ in range(2))
        self.head = nn.Linear(d, classes)
    def forward(self, x):
        x = self.embed(x)
        for i in range(2):
            x = x + self.token[i](self.norms[2 * i](x).mT).mT
            x = x + self.channel[i](self.norms[2 * i + 1](x))
        return self.head(x.mean(1))

model = Mixer().bfloat16()
masters = [p.detach().float().clone().requires_grad_(True) for p in model.parameters()]
opt = torch.optim.AdamW(masters, lr=1e-3)
watch = rangewatch.attach(model, opt)
protos = torch.randn(6, 9, 12)
for step in range(400):
    y = torch.randint(0, 6, (32,))
    x = protos[y] + 2.0 * torch.randn(32, 9, 12)
    loss = F.cross_entropy(model(x.bfloat16()).float(), y)
    model.zero_grad(set_to_none=True)
    loss.backward()
    for m, p in zip(masters, model.parameters()):
        m.grad = p.grad.float()
    opt.step()
    with torch.no_grad():
        for m, p in zip(masters, model.parameters()):
            p.copy_(m)
    watch.log(loss=loss.item())
