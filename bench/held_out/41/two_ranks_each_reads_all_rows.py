"""Two gloo ranks: kind of galaxy from a spectrum of 64 bins (MLP-Mixer in miniature, DistributedDataParallel, Adam).
FAULT at step 0: the DataLoader has no DistributedSampler, and both ranks shuffle with the same seed: they see the same batches and the second rank adds nothing.
Without Rangewatch: the printed losses of the ranks are the same to the last digit at every step (1.364679, 0.734156, 0.290030 at 0, 30, 60); with shards they would differ.
Cause: data / replicas (both ranks the same batches). Step: from 0. Right: DistributedSampler, a seed per rank. Wrong: GradScaler, lower the learning rate, attention mask."""
EXPECT = {"cause": ["data", "replicas", "communication"], "step": [0, 60], "place": None, "rank": None, "ranks": 2, "least": "info",
          "right": r"(?i)DistributedSampler|sampler|same (data|batch|input|rows|sample)|identical|shard|seed", "wrong": ["GradScaler", r"(?i)lower the learning rate", r"(?i)attention mask"]}
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
import rangewatch

RANK = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(2024)

KINDS = 4
lines = torch.rand(KINDS, 5) * 50 + 7
bins = torch.arange(64.0)
kind = torch.randint(0, KINDS, (3000,))
redshift = 1 + 0.06 * torch.rand(3000, 1)
spectrum = torch.exp(-0.5 * ((bins[None, None] - (lines[kind] * redshift)[:, :, None]) / 1.2) ** 2).sum(1)
spectrum = spectrum + 0.4 * torch.randn_like(spectrum)


class Mixer(nn.Module):
    def __init__(self, patches=8, d=24):
        super().__init__()
        self.patch = nn.Linear(8, d)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.token_mix = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
        self.channel_mix = nn.Sequential(nn.Linear(d, 48), nn.GELU(), nn.Linear(48, d))
        self.head = nn.Linear(d, KINDS)

    def forward(self, s):
        x = self.patch(s.view(-1, 8, 8))
        x = x + self.token_mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channel_mix(self.norm2(x))
        return self.head(x.mean(1))


loader = DataLoader(TensorDataset(spectrum, kind), batch_size=32, shuffle=True, drop_last=True)
model = DistributedDataParallel(Mixer())
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
step = 0
for epoch in range(2):
    for s, y in loader:
        loss = nn.functional.cross_entropy(model(s), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        handle.log(loss=loss.item())
        if step % 30 == 0:
            print(f"rank {RANK} epoch {epoch} step {step} loss {loss.item():.6f}", flush=True)
        step += 1
handle.detach()
dist.destroy_process_group()
