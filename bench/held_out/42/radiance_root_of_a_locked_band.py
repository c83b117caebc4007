"""A coordinate network paints a synthetic picture from Fourier features (four bands, amplitude sqrt(alpha) learned per band), float16 autocast on the CPU with GradScaler, Adam.
FAULT at step 90: the fourth band is unlocked with alpha = 0; the derivative of the square root there is infinite, so the gradient of alpha is inf (and nan) at every scale: every step is skipped and the scale halves at each.
Without Rangewatch: loss 0.45 to 0.04 at 89 and 0.035 to 0.042 for ever after; scale 4096 up to 89, 2048 at 90, 2e-6 at 120, 3e-33 at 209; gradient of alpha[3] inf, later nan.
Cause: backward_arithmetic / forward_arithmetic (sqrt at 0) / weight (alpha begins at 0). Step: 90. Right: eps, learn the amplitude itself, begin above 0. Wrong: lower the learning rate, a smaller loss scale, clip."""
EXPECT = {"cause": ["backward_arithmetic", "forward_arithmetic", "weight"], "step": [89, 125], "place": r"(?i)alpha", "rank": None,
          "right": r"(?i)sqrt|root|eps|derivative|alpha|backward|zero|anomaly|clamp", "wrong": [r"(?i)lower the learning rate", r"(?i)(smaller|lower) (init|loss.?scale|scale)", r"(?i)clip (the )?grad"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(404)
torch.set_num_threads(1)


class Painter(nn.Module):
    def __init__(self, bands=4, width=48):
        super().__init__()
        alpha = torch.full((bands,), 1.0)
        alpha[-1] = 0.0
        self.alpha = nn.Parameter(alpha)
        self.active = 3
        self.layers = nn.Sequential(nn.Linear(4 * bands, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))
        self.bands = bands

    def forward(self, uv):
        amplitude = torch.sqrt(self.alpha[:self.active])
        feats = []
        for b in range(self.active):
            angle = math.pi * 2 ** b * uv
            feats += [amplitude[b] * angle.sin(), amplitude[b] * angle.cos()]
        feats = torch.cat(feats, 1)
        pad = feats.new_zeros(len(uv), 4 * (self.bands - self.active))
        return self.layers(torch.cat([feats, pad], 1))


def colour(uv):
    u, v = uv.unbind(1)
    return torch.stack([torch.sin(7 * u + 3 * v), torch.cos(9 * u * v), torch.sign(torch.sin(11 * v)) * 0.5], 1)


painter = Painter()
adam = torch.optim.Adam(painter.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)
handle = rangewatch.attach(painter, adam)
for step in range(210):
    if step == 90:
        painter.active = 4
    uv = torch.rand(256, 2) * 2 - 1
    with torch.autocast("cpu", dtype=torch.float16):
        rgb = painter(uv)
    loss = nn.functional.mse_loss(rgb.float(), colour(uv))
    adam.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(adam)
    scaler.update()
    handle.log(loss=loss.item())
    if step % 30 == 0 or 88 <= step <= 92 or step == 209:
        print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.3g} gradient of alpha {painter.alpha.grad.tolist()}", flush=True)
handle.detach()
