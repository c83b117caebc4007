"""A small U-Net segments blobs in noisy images; images are bfloat16, the net runs under bfloat16 autocast (AdamW). FAULT at step 145: one image of the batch comes from another camera with a black level taken off: some pixels are
negative, and the gamma correction x ** 0.45 of the loader makes NaN of them.
Without Rangewatch: loss 0.81 to 0.05 at step 144; NaN at step 145 and from there on.
Cause: data. Step: 145. Right: input / image / data / NaN / power. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [144, 149], "place": None, "rank": None,
          "right": "(?i)input|image|data|batch|preproc|pixel", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3325); torch.set_num_threads(1)
grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))


def conv(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.deep = conv(1, 12), conv(12, 24)
        self.up = nn.ConvTranspose2d(24, 12, 2, 2)
        self.join, self.mask = conv(24, 12), nn.Conv2d(12, 1, 1)

    def forward(self, x):
        a = self.down(x)
        b = self.deep(F.avg_pool2d(a, 2))
        return self.mask(self.join(torch.cat([a, self.up(b)], 1)))


def load(n, step):
    centre = 4 + 8 * torch.rand(n, 2, 1, 1)
    d = (grid - centre).norm(dim=1, keepdim=True)
    y = (d < 3.5).float()
    raw = (0.35 + 0.3 * y + 0.1 * torch.randn(n, 1, 16, 16)).clamp(0, 1)
    if step == 145:
        raw[9] -= 0.3
    return raw.pow(0.45).bfloat16(), y


net = UNet()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(190):
    x, y = load(16, step)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(x)
    loss = F.binary_cross_entropy_with_logits(out.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 143 < step < 149:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
