"""A small noise predictor on 4x8x8 latents, conditioned on time, in the way of a diffusers DreamBooth script, with EMA (diffusers issue: 'loss is nan from the second step with fp16 weights').
FAULT at step 0: the unet is put in float16 in full ('to save memory') and trained with Adam, eps 1e-8, no GradScaler and no float32 master weights; eps is 0 in half, the second moment underflows to 0 and m / 0 is inf or NaN.
Without Rangewatch: loss 1.20 at step 0, nan from 1 on; the weights are spoiled by the first step.
Cause: optimizer (eps too small for half) / weight (weights in half). Step: 0 or 1. Right: weights in float32 with autocast, eps 1e-4. Wrong: lower the learning rate, clip."""
EXPECT = {"cause": ["optimizer", "weight", "loss_scale"], "step": [0, 2], "place": None, "rank": None,
          "right": r"(?i)eps|float32|fp32|master|half|float16|fp16|autocast", "wrong": [r"(?i)lower the learning rate", r"(?i)attention mask", r"(?i)\.eval\(\)"]}
import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(33); torch.set_num_threads(1)
weight_dtype = torch.float16
alphas_cumprod = torch.cumprod(1 - torch.linspace(1e-3, 0.05, 100), 0)
subject = torch.randn(3, 4 * 64)


class ResMLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.fc1, self.fc2 = nn.Linear(d, d), nn.Linear(d, d)
        self.time_proj = nn.Linear(32, d)

    def forward(self, h, temb):
        return h + self.fc2(F.silu(self.fc1(self.norm(h)) + self.time_proj(temb)))


class UNet(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.conv_in = nn.Linear(256, d)
        self.mid = nn.ModuleList([ResMLP(d) for _ in range(3)])
        self.conv_out = nn.Linear(d, 256)

    def forward(self, x, t):
        f = torch.exp(-torch.arange(16) * math.log(1000) / 16)
        temb = torch.cat([torch.sin(t[:, None] * f), torch.cos(t[:, None] * f)], 1).to(x.dtype)
        h = self.conv_in(x)
        for m in self.mid:
            h = m(h, temb)
        return self.conv_out(h)


def add_noise(x, n, t):
    a = alphas_cumprod[t][:, None]
    return a.sqrt() * x + (1 - a).sqrt() * n


unet = UNet().to(dtype=weight_dtype)
ema = copy.deepcopy(unet).requires_grad_(False)
optimizer = torch.optim.Adam(unet.parameters(), lr=1e-4)
handle = rangewatch.attach(unet, optimizer)
for step in range(150):
    latents = subject[torch.randint(0, 3, (16,))] + 0.1 * torch.randn(16, 256)
    noise = torch.randn_like(latents)
    timesteps = torch.randint(0, 100, (16,))
    noisy = add_noise(latents, noise, timesteps)
    pred = unet(noisy.to(weight_dtype), timesteps)
    loss = F.mse_loss(pred.float(), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), unet.parameters()):
            e.lerp_(p, 0.01)
    handle.log(loss=loss.item())
    if step < 4 or step % 30 == 0:
        print(f"Steps: {step} step_loss={loss.item():.4f}", flush=True)
handle.detach()
