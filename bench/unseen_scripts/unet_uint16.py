"""U-Net with GroupNorm that denoises. FAULT at step 130: one batch was not divided by 65535 (raw uint16 values), input and target alike:
finite, large; the loss jumps by many orders for one step. Cause: data, step 130, place: model's input / the loss. Recovers or not.
Right: look at the batch of step 130. Wrong: mask, weights, lower the learning rate as the first advice, dtype."""
EXPECT = {"cause": ["data"], "step": [130, 131], "place": None, "rank": 0,
          "wrong": ["[Mm]ask", "tensors of the checkpoint", "GradScaler", "bfloat16"], "right": "batch"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

def double(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU(), nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU())

class UNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.down1, self.down2, self.bottom = double(1, c), double(c, 2 * c), double(2 * c, 2 * c)
        self.up2, self.up1 = double(4 * c, c), double(2 * c, c)
        self.out = nn.Conv2d(c, 1, 1)
    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.avg_pool2d(a, 2))
        m = self.bottom(F.avg_pool2d(b, 2))
        u = self.up2(torch.cat([F.interpolate(m, scale_factor=2), b], 1))
        return x + self.out(self.up1(torch.cat([F.interpolate(u, scale_factor=2), a], 1)))

net = UNet()
opt = torch.optim.Adam(net.parameters(), 1e-3)
watch = rangewatch.attach(net, opt)
grid = torch.linspace(0, 6.28, 16)
for step in range(200):
    ph = 6.28 * torch.rand(8, 2, 1)
    clean = 0.5 + 0.25 * (torch.sin(grid + ph[:, 0])[:, None, :, None] + torch.sin(grid + ph[:, 1])[:, None, None, :])
    if step == 130:
        clean = clean * 65535
    noisy = clean + 0.2 * clean.std() * torch.randn(8, 1, 16, 16)
    loss = (net(noisy) - clean).abs().pow(1.5).mean()
    watch.log(loss=loss.item())
    opt.zero_grad(); loss.backward(); opt.step()
