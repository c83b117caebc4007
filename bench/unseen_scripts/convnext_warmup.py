"""ConvNeXt-style net, SGD with momentum and an exponential warm-up that lacks its min(): lr grows 6 % a step for ever. FAULT gradually:
healthy to about step 100, diverges between 100 and 220. Cause: learning_rate. Step: any from 90 on. Right: learning rate (schedule).
Wrong: mask, leaving out batches, weights of a checkpoint, dtype."""
EXPECT = {"cause": ["learning_rate"], "step": [80, 230], "place": None, "rank": 0,
          "wrong": ["[Mm]ask", "leave out", "checkpoint", "GradScaler", "bfloat16"], "right": "learning rate"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

class ConvNeXtBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.dw, self.norm = nn.Conv2d(d, d, 5, padding=2, groups=d), LayerNorm2d(d)
        self.pw1, self.pw2 = nn.Conv2d(d, 3 * d, 1), nn.Conv2d(3 * d, d, 1)
        self.gamma = nn.Parameter(torch.full((d, 1, 1), 1e-1))
    def forward(self, x):
        return x + self.gamma * self.pw2(F.gelu(self.pw1(self.norm(self.dw(x)))))

net = nn.Sequential(nn.Conv2d(3, 24, 2, 2), LayerNorm2d(24), ConvNeXtBlock(24), ConvNeXtBlock(24),
                    nn.Conv2d(24, 32, 2, 2), ConvNeXtBlock(32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 8))
opt = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
watch = rangewatch.attach(net, opt)
protos = torch.randn(8, 3, 12, 12)
for it in range(240):
    for g in opt.param_groups:
        g["lr"] = 1e-3 * 1.06 ** it                     # min(1e-2, ...) is missing
    y = torch.randint(0, 8, (16,))
    loss = F.cross_entropy(net(protos[y] + torch.randn(16, 3, 12, 12)), y)
    watch.log(loss=loss.item())
    opt.zero_grad(); loss.backward(); opt.step()
