"""Two gloo ranks train an autoencoder of vibration spectra (Adam). The model is wrapped in DistributedDataParallel.
FAULT at step 0: natural. The loop calls `ddp.module(x)` (copied from the saving code): DDP's forward never runs, so no gradients are averaged; the ranks' weights drift apart, each learns its own machine.
Without Rangewatch: own loss falls 0.07 to 0.006 on each rank and looks well, on the other rank's machine 0.05 to 0.06; the norms of squeeze.0.weight part (4.885 / 4.757 at step 249). With ddp(x) 0.008 to 0.011 on both machines, norms equal.
Cause: replicas / communication. Step: 0 to 60. Right: call the wrapper, gradients not averaged, weights differ. Wrong: lower the learning rate, GradScaler, zero_grad."""
EXPECT = {"cause": ["replicas", "communication"], "step": [0, 60], "place": None, "rank": None, "ranks": 2,
          "right": r"(?i)differ|drift|diverg|averag|all.?reduce|synchroni|DistributedDataParallel|replica|not the same",
          "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)call .{0,20}zero_grad", "(?i)attention mask"]}
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import rangewatch

dist.init_process_group("gloo", init_method="env://")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)
harmonics = torch.rand(2, 5) * 60          # each rank's files come from another machine
gen = torch.Generator().manual_seed(100 + rank)
bins = torch.arange(64.0)


def spectra(n, machine):
    speed = 0.8 + 0.4 * torch.rand(n, 1, generator=gen)
    level = torch.rand(n, 5, 1, generator=gen)
    peaks = torch.exp(-((bins - (harmonics[machine] * speed)[:, :, None]) / 2) ** 2)
    return (level * peaks).sum(1) + 0.02 * torch.randn(n, 64, generator=gen)


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.squeeze = nn.Sequential(nn.Linear(64, 48), nn.ELU(), nn.Linear(48, 8))
        self.unsqueeze = nn.Sequential(nn.Linear(8, 48), nn.ELU(), nn.Linear(48, 64))

    def forward(self, x):
        return self.unsqueeze(self.squeeze(x))


ddp = DDP(AutoEncoder())
optimizer = torch.optim.Adam(ddp.parameters(), lr=2e-3)
handle = rangewatch.attach(ddp, optimizer)
for step in range(250):
    x = spectra(64, rank)
    loss = nn.functional.mse_loss(ddp.module(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 249:
        with torch.no_grad():
            other = spectra(64, 1 - rank)
            cross = nn.functional.mse_loss(ddp.module(other), other).item()
        print(rank, step, f"own {loss.item():.4f} other machine {cross:.4f} |w| {ddp.module.squeeze[0].weight.norm().item():.4f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
