"""A DDPM learns 10x10 digit-like pictures (noise prediction, AdamW).
FAULT at step 0: the loader hands over uint8 pixels 0..255 as floats; the /127.5 - 1 is missing, so the unit noise is lost beside the picture and activations are a hundred times too large.
Without Rangewatch: loss 215, 20 at step 20, 1.34 at step 159: worse than the 1.0 of predicting nothing (with the pixels scaled: 0.54 at step 20, 0.18 at 159).
Cause: data (inputs not normalised). Step: from 0. Right: scale the pixels to -1..1. Wrong: GradScaler, attention mask, zero_grad."""
EXPECT = {"cause": ["data"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)normali[sz]|scale|standardi[sz]|input|255", "wrong": ["GradScaler", r"(?i)attention mask", r"(?i)zero_grad"]}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(1000); torch.set_num_threads(1)
TIMESTEPS, SIDE = 200, 10
betas = torch.linspace(1e-4, 0.04, TIMESTEPS)
alphas_cumprod = torch.cumprod(1 - betas, 0)


def digit_loader(n):
    img = torch.zeros(n, SIDE, SIDE, dtype=torch.uint8)
    for i in range(n):
        r, c = torch.randint(1, 8, (2,)).tolist()
        if i % 2:
            img[i, 1:9, c:c + 2] = 220
        else:
            img[i, r:r + 2, 1:9] = 220
        img[i, r, c] = 255
    return img[:, None].float()


class EpsNet(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.time_mlp = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, ch))
        self.conv_in = nn.Conv2d(1, ch, 3, padding=1)
        self.res1 = nn.Conv2d(ch, ch, 3, padding=1)
        self.res2 = nn.Conv2d(ch, ch, 3, padding=2, dilation=2)
        self.conv_out = nn.Conv2d(ch, 1, 3, padding=1)

    def forward(self, x, t):
        a = alphas_cumprod[t][:, None]
        h = F.silu(self.conv_in(x) + self.time_mlp(torch.cat([a.sqrt(), (1 - a).sqrt()], 1))[:, :, None, None])
        h = h + F.silu(self.res1(h))
        h = h + F.silu(self.res2(h))
        return self.conv_out(h)


eps_net = EpsNet()
optim = torch.optim.AdamW(eps_net.parameters(), lr=1e-3)
handle = rangewatch.attach(eps_net, optim)
for step in range(160):
    x0 = digit_loader(24)
    t = torch.randint(0, TIMESTEPS, (len(x0),))
    noise = torch.randn_like(x0)
    a = alphas_cumprod[t][:, None, None, None]
    loss = F.mse_loss(eps_net(a.sqrt() * x0 + (1 - a).sqrt() * noise, t), noise)
    optim.zero_grad()
    loss.backward()
    optim.step()
    if step % 20 == 0 or step == 159:
        print(step, f"{loss.item():.4f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
