"""A denoising diffusion model of 8x8 blobs (MLP denoiser, raw timestep 0..999 into a small time MLP with squared ReLU), float16 autocast with GradScaler, AdamW.
FAULT at step 0: natural. The time MLP's activations are some hundreds (the timestep is not scaled); their square passes float16's 65504 and is inf, the next linear makes NaN of it. The scaler skips every step and halves its scale for ever. In float32 the same code trains.
Without Rangewatch: loss NaN from step 0 on; the scale falls 3.3e4, 1e-3 (step 25), 3e-11 (step 50) to 0 at step 175. In float32 0.30 at step 199, and with bfloat16 the same.
Cause: forward_arithmetic. Step: 0 to 5. Right: overflow of float16 in the time MLP / bfloat16 / float32 there / scale the timestep. Wrong: lower the learning rate, raise the loss scale, zero_grad, attention mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [0, 5], "place": r"(time|time_embed)(\..+)?", "rank": None,
          "right": r"(?i)overflow|65504|bfloat16|float32|fp16|float16|half|range", "wrong": [r"(?i)lower the learning rate", r"(?i)(raise|larger|higher).{0,20}(loss scale|init_scale)", r"(?i)call .{0,20}zero_grad", "(?i)attention mask"]}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(999)
torch.set_num_threads(1)
STEPS = 1000
alpha_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS), 0)
grid = torch.stack(torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij"))


def blobs(n):
    centre = 1 + 5 * torch.rand(n, 2, 1, 1)
    return 2 * torch.exp(-((grid - centre) ** 2).sum(1) / 4).flatten(1) - 1


class SquaredReLU(nn.Module):
    def forward(self, x):
        return F.relu(x) ** 2


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 32), SquaredReLU(), nn.Linear(32, 128), nn.LayerNorm(128))
        self.enter, self.middle, self.leave = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 64)

    def forward(self, noisy, t):
        h = F.silu(self.enter(noisy)) + self.time(t[:, None].float())
        return self.leave(F.silu(self.middle(h)) + h)


eps_model = Denoiser()
optimizer = torch.optim.AdamW(eps_model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
handle = rangewatch.attach(eps_model, optimizer, scaler=scaler)
for step in range(200):
    x0 = blobs(64)
    t = torch.randint(0, STEPS, (64,))
    noise = torch.randn_like(x0)
    noisy = alpha_bar[t].sqrt()[:, None] * x0 + (1 - alpha_bar[t]).sqrt()[:, None] * noise
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.float16):
        predicted = eps_model(noisy, t)
    loss = F.mse_loss(predicted.float(), noise)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 25 == 0 or step == 199:
        print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.3g}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
