"""A diffusion (noise prediction, 50 levels) of one-dimensional pulses, float16 autocast with GradScaler (scale 2**13), AdamW.
FAULT at step 100: a pulse that was recorded with the gain 1000 too high makes a loss, and a scaled gradient, that overflow float16 in that one step; the scaler skips the step and halves its scale, and all is well after it.
Without Rangewatch: loss 1.6 to 0.49 at step 99, 1292 in step 100, which is skipped (scale 8192 to 4096), 0.55 in step 101 and 0.38 in the end.
Cause: loss_scale (data is the deeper one; info). Step: 100. Right: one skipped step is normal with a scaler; look at that batch if it happens again. Wrong: lower the learning rate, attention mask, initialisation."""
EXPECT = {"cause": ["loss_scale", "data", "backward_arithmetic", "forward_arithmetic"], "step": [99, 102], "place": None, "rank": None, "least": "info",
          "right": r"(?i)skip|scale|overflow|batch|input|data", "wrong": ["[Ll]ower the learning rate", "attention mask", "initiali[sz]ation"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(50); torch.set_num_threads(1)
LEVELS = 50
kept = torch.cumprod(1 - torch.linspace(1e-3, 0.12, LEVELS), 0)
tt = torch.linspace(-1, 1, 32)


def pulses(n):
    centre, width = 0.6 * torch.rand(n, 1) - 0.3, 0.08 + 0.1 * torch.rand(n, 1)
    return 2 * torch.exp(-((tt - centre) / width) ** 2) - 0.5


class Denoiser(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.level = nn.Embedding(LEVELS, width)
        self.wave_in = nn.Linear(32, width)
        self.hidden = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.wave_out = nn.Linear(width, 32)

    def forward(self, x, t):
        h = self.wave_in(x) + self.level(t)
        for layer in self.hidden:
            h = h + F.silu(layer(h))
        return self.wave_out(h)


net = Denoiser()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 13)
handle = rangewatch.attach(net, opt, scaler=scaler)
for step in range(220):
    x0, t = pulses(48), torch.randint(0, LEVELS, (48,))
    if step == 100:
        x0[17] *= 1000
    noise = torch.randn_like(x0)
    xt = kept[t].sqrt()[:, None] * x0 + (1 - kept[t]).sqrt()[:, None] * noise
    with torch.autocast("cpu", dtype=torch.float16):
        guess = net(xt, t)
    loss = F.mse_loss(guess.float(), noise)
    opt.zero_grad()
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    if scaler.get_scale() < before:
        print("skipped step", step, "loss", loss.item())
    if step % 20 == 0 or 98 < step < 103:
        print(step, f"loss {loss.item():.4f} scale {scaler.get_scale():.0f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
