"""A small denoiser, epsilon prediction with min-SNR weights (gamma 5), betas rescaled to zero terminal SNR. FAULT at step 90: the curriculum of
timesteps reaches the last one, whose SNR is 0: min(snr, 5) / snr is 0 / 0. Without Rangewatch: loss 0.77 to 0.21, NaN at the first
batch that draws the last timestep (step 90, forced into the batch), all weights NaN after it.
Report: TiankaiHang/Min-SNR-Diffusion-Training#4 ("step loss goes to NaN and the model is broken"), #2, kohya-ss/sd-scripts#934.
Cause: arithmetic of the loss, 0 / 0 in its weights, computed without gradient. Right: the division, a floor, the SNR, the loss's weights.
Wrong: lower the learning rate, mask, GradScaler, leave the sample out."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [90, 91], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "GradScaler"],
          "right": "divi|0 / 0|eps|loss|weight of|SNR|clamp"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(12); torch.set_num_threads(1)
T = 50
beta = torch.linspace(1e-3, 0.15, T)
root = (1 - beta).cumprod(0).sqrt()
root = (root - root[-1]) * root[0] / (root[0] - root[-1])  # rescaled: the last one is 0
alpha = root ** 2
snr = alpha / (1 - alpha)


class Denoiser(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.time, self.inp = nn.Embedding(T, d), nn.Linear(2, d)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 2))

    def forward(self, x, t):
        return self.body(self.inp(x) + self.time(t))


model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
watch = rangewatch.attach(model, optimizer)
for step in range(130):
    angle = 6.283 * torch.rand(128, 1)
    x = torch.cat([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(128, 2)
    t = torch.randint(0, T - 1, (128,))
    if step >= 90:
        t[:3] = T - 1
    noise = torch.randn_like(x)
    noisy = alpha[t].sqrt()[:, None] * x + (1 - alpha[t]).sqrt()[:, None] * noise
    weight = snr[t].clamp(max=5.0) / snr[t]
    loss = (weight * (model(noisy, t) - noise).square().mean(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 15 == 0 or 88 <= step < 93:
        print(step, round(loss.item(), 4))
