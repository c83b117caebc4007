"""NeRF-style MLP with positional encoding and volume rendering. FAULT from step 150: the loss changes to sRGB through
torch.where(x <= .0031308, 12.92 x, 1.055 x^(1/2.4) - .055), whose gradient at a pixel of exactly 0 is NaN (the where trick); the
forward is finite. Cause: backward_arithmetic, step 150, place: rgb head / whole model's output gradient.
Right: clamp below the power. Wrong: learning rate, mask, batch, dtype, weights."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [150, 150], "place": r"(rgb|sigma|trunk.*|)", "rank": 0,
          "wrong": ["learning rate", "[Mm]ask", "checkpoint", "GradScaler", "bfloat16", "samples that are not finite"], "right": "pow|where|sqrt|anomaly"}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

def encode(x, bands=5):
    f = 2.0 ** torch.arange(bands) * math.pi
    ang = x[..., None] * f
    return torch.cat([x, ang.sin().flatten(-2), ang.cos().flatten(-2)], -1)

class Field(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.trunk = nn.ModuleList([nn.Linear(33, width), nn.Linear(width, width), nn.Linear(width + 33, width)])
        self.sigma, self.rgb = nn.Linear(width, 1), nn.Linear(width, 3)
    def forward(self, p):
        e = encode(p)
        h = F.relu(self.trunk[1](F.relu(self.trunk[0](e))))
        h = F.relu(self.trunk[2](torch.cat([h, e], -1)))
        return F.softplus(self.sigma(h)).squeeze(-1), F.relu(self.rgb(h) + 0.3)

def render(field, origin, direction, samples=12):
    t = torch.linspace(0.2, 2.0, samples)
    sigma, rgb = field(origin[:, None] + t[:, None] * direction[:, None])
    alpha = 1 - torch.exp(-sigma * (t[1] - t[0]))
    trans = torch.cumprod(torch.cat([torch.ones(len(alpha), 1), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    return ((alpha * trans)[..., None] * rgb).sum(1)

def srgb(x):
    return torch.where(x <= 0.0031308, 12.92 * x, 1.055 * x ** (1 / 2.4) - 0.055)

field = Field()
opt = torch.optim.Adam(field.parameters(), 1e-3)
rangewatch.attach(field, opt)
for step in range(220):
    d = F.normalize(torch.randn(96, 3), dim=1)
    o = -1.2 * d
    truth = (0.5 + 0.5 * torch.sin(3 * d)).clamp(0, 1) * (d[:, :1] > 0)   # half of the scene is black
    colour = render(field, o, d)
    if step >= 150:
        colour = colour * (d[:, :1] > 0)                                   # composited with the object's mask
        loss = F.mse_loss(srgb(colour), srgb(truth))
    else:
        loss = F.mse_loss(colour, truth)
    opt.zero_grad(); loss.backward(); opt.step()
