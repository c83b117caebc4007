"""A latent diffusion model that predicts noise. The first epochs encode the images and multiply the latents by 0.18215; FAULT from step 150 on: the
cached latents of the same images are used, which were written without the factor: 5.5 times as large. All is finite, the loss is worse and what is
learnt is of no use for the decoder.
Without Rangewatch: loss 1.09 to 0.41 at step 149, 6.5 at step 150, 0.95 to 0.98 at the end; std of the latents 0.99, then 5.46.
Report: huggingface/diffusers#437 (the 0.18215), hpcaitech/Open-Sora#494 (the wrong scaling factor), LTH14/mar#52 (training with cached latents).
Cause: data. Step: 150. Right: scale / normalise / input / data. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["data"], "step": [148, 170], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "scal|normali|input|data|batch|latent|unit|range"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(715); torch.set_num_threads(1)
FACTOR = 0.18215
base = torch.randn(16, 4, 8, 8) / FACTOR


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 32))
        self.first = nn.Conv2d(4, 32, 3, padding=1)
        self.middle = nn.Conv2d(32, 32, 3, padding=1)
        self.last = nn.Conv2d(32, 4, 3, padding=1)

    def forward(self, x, t):
        h = F.silu(self.first(x) + self.time(t)[:, :, None, None])
        h = h + F.silu(self.middle(h))
        return self.last(h)


def encode():
    return base[torch.randint(0, 16, (16,))] + 0.1 / FACTOR * torch.randn(16, 4, 8, 8)


model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    latents = encode() * FACTOR if step < 150 else encode()  # as the cache has them
    t, noise = torch.rand(16, 1), torch.randn(16, 4, 8, 8)
    a = torch.cos(t * 1.5)[:, :, None, None]
    loss = F.mse_loss(model(a * latents + (1 - a * a).sqrt() * noise, t), noise)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or 148 < step < 155:
        print(step, loss.item(), latents.std().item(), flush=True)
handle.detach()
