"""A small convolutional autoencoder that takes noise off heartbeats, trained by four ranks under DistributedDataParallel with AdamW.
FAULT at step 90: on rank 2 alone one number of the second downward convolution (down.2.weight) has become NaN. Its own output is NaN in that step; the mean
of the gradients carries the NaN to all four ranks, and from step 91 on all weights everywhere are NaN.
Without Rangewatch: loss 0.34 to 0.027 at step 89; at step 90 NaN on rank 2 and 0.026 on the others; NaN on all four from step 91 to the end.
Causes: weight (of rank 2), or hardware. Right: look at the weight of rank 2, reload it / a checkpoint. Wrong: lower the rate, a GradScaler, an attention mask."""
EXPECT = {"cause": ["weight", "hardware"], "step": [89, 91], "place": "(module\\.)?down\\.2.*", "rank": 2, "ranks": 4,
          "right": "(?i)weight|parameter|checkpoint|hardware|rank 2|memory", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(2201); torch.set_num_threads(1)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv1d(1, 16, 7, 2, 3), nn.GELU(), nn.Conv1d(16, 32, 7, 2, 3), nn.GELU())
        self.up = nn.Sequential(nn.ConvTranspose1d(32, 16, 8, 2, 3), nn.GELU(), nn.ConvTranspose1d(16, 1, 8, 2, 3))

    def forward(self, x):
        return self.up(self.down(x))


net = Denoiser()
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
draw = torch.Generator().manual_seed(50 + rank)
t = torch.arange(96.0)
for step in range(170):
    beat = 12 + 12 * torch.rand(12, 1, 1, generator=draw)
    clean = torch.exp(-0.5 * (((t + 30 * torch.rand(12, 1, 1, generator=draw)) % beat - 6) / 1.5) ** 2)
    noisy = clean + 0.4 * torch.randn(clean.shape, generator=draw)
    if step == 90 and rank == 2:
        with torch.no_grad():
            net.down[2].weight[5, 3, 2] = float("nan")
    loss = F.mse_loss(model(noisy), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 30 == 0 or step in (89, 90, 91, 169):
        print("rank", rank, "step", step, "loss", loss.item(), flush=True)
handle.detach()
dist.destroy_process_group()
