"""Nuclei in microscope tiles are segmented by a tiny U-Net, RMSprop, a hand-written cross-entropy over torch.sigmoid.
FAULT at step 76: -(y*log(p) + (1-y)*log(1-p)) without eps and not from logits; when the net is sure enough p becomes exactly 1 in float32 and 0 * log(0) is NaN.
Without Rangewatch: loss 0.69 to 0.05 and IoU 0.9 at step 60, first NaN at step 76 (largest p exactly 1 there) and ever after; all NaN at IoU 0.
Cause: forward_arithmetic (log of zero in the loss). Step: 76. Right: binary_cross_entropy_with_logits, clamp the log's argument.
Wrong: GradScaler, attention mask, NaN in the input data."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [75, 79], "place": None, "rank": None,
          "right": r"(?i)with_logits|log\(0|log of (0|zero)|clamp|saturat|\beps\b|loss", "wrong": ["GradScaler", r"(?i)attention mask", r"(?i)input (data|batch) (holds|has|contains) nan"]}
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(31); torch.set_num_threads(1)
S = 24
gy, gx = torch.meshgrid(torch.arange(S).float(), torch.arange(S).float(), indexing="ij")


def tiles(n):
    mask = torch.zeros(n, S, S)
    for _ in range(2):
        cy, cx, r = (torch.rand(n, 1, 1) * 16 + 4 for _ in range(3))
        mask = torch.maximum(mask, ((gy - cy) ** 2 + (gx - cx) ** 2 < (2 + r / 6) ** 2).float())
    gain = torch.exp(0.5 * torch.randn(n, 1, 1)) * 1.5
    return (gain * (mask - 0.3) + 0.25 * torch.randn(n, S, S))[:, None], mask[:, None]


class MiniUNet(nn.Module):
    def __init__(self, c=10):
        super().__init__()
        self.enc1 = nn.Conv2d(1, c, 3, padding=1)
        self.enc2 = nn.Conv2d(c, 2 * c, 3, padding=1, stride=2)
        self.mid = nn.Conv2d(2 * c, 2 * c, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.dec = nn.Conv2d(2 * c, c, 3, padding=1)
        self.logit = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = F.relu(self.enc1(x))
        b = F.relu(self.mid(F.relu(self.enc2(a))))
        return torch.sigmoid(self.logit(F.relu(self.dec(torch.cat([a, self.up(b)], 1)))))


def bce(p, y):
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()


unet = MiniUNet()
opt = torch.optim.RMSprop(unet.parameters(), lr=3e-4)
handle = rangewatch.attach(unet, opt)
broken = False
for step in range(200):
    x, y = tiles(16)
    p = unet(x)
    loss = bce(p, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or loss.isnan() and not broken:
        iou = ((p > 0.5) & (y > 0.5)).sum() / ((p > 0.5) | (y > 0.5)).sum().clamp(min=1)
        print(step, f"loss {loss.item():.4f} iou {iou.item():.3f} largest p {p.max().item():.8f}", flush=True)
    broken = broken or bool(loss.isnan())
    handle.log(loss=loss.item())
handle.detach()
