"""Two gloo ranks, a denoiser of heart sounds in DistributedDataParallel. FAULT at step 100 on rank 1 alone: one file of its shard is damaged, a sample
decodes to inf. Its gradients are NaN, the all-reduce carries them to rank 0, and both models are lost in the same step.
Without Rangewatch: losses 0.76 and 0.77 to 0.03 and 0.03 at step 99; at step 100 NaN on rank 1 and 0.026 on rank 0, from step 101 on NaN on both.
Report: Plachtaa/seed-vc#108 (one damaged file, a value beyond 1e29: NaN), NVIDIA/waveglow#103 (NaN on 4 GPUs: the data set), mozilla/TTS#282 (NaN or inf
in the input tensor, distributed), flashlight/wav2letter#386.
Cause: data. Step: 100. Rank: 1. Right: input / batch / file / inf / rank 1. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [100, 101], "place": None, "rank": 1, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "input|batch|data|[Ii]nf|non-finite|file"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1023); torch.set_num_threads(1)
time = torch.arange(160) / 160


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv1d(1, 16, 9, stride=2, padding=4)
        self.middle = nn.Conv1d(16, 16, 9, padding=4)
        self.up = nn.ConvTranspose1d(16, 1, 8, stride=2, padding=3)

    def forward(self, x):
        h = F.leaky_relu(self.down(x), 0.1)
        return self.up(h + F.leaky_relu(self.middle(h), 0.1))


model = DistributedDataParallel(Denoiser())
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(700 + rank)
for step in range(180):
    beat, phase = 3 + 3 * torch.rand(24, 1, generator=own), torch.rand(24, 1, generator=own)
    y = torch.exp(-(((beat * time + phase) % 1 - 0.5) / 0.1) ** 2)[:, None]
    x = y + 0.5 * torch.randn(24, 1, 160, generator=own)
    if step == 100 and rank == 1:
        x[3, 0, 41] = float("inf")  # the damaged file of shard 1
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (99, 101, 179):
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
