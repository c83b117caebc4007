"""DistributedDataParallel on two gloo ranks: a dilated convolution over time forecasts a sum of waves (NAdam). FAULT at step 40: "shrink and perturb" adds noise to all weights, drawn on each rank from a generator with the rank in its
seed: the replicas part and stay apart (DDP averages gradients, not weights).
Without Rangewatch: loss 1.06 to 0.20 at step 39, 0.49 at 41, on to 0.005; sums of the weights the same (8.8595) to step 39, 7.70 and 7.85 behind step 40, 14.97 and 15.12 at the end.
Cause: replicas. Step: 40. Right: replicas / same seed / broadcast. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["replicas"], "step": [39, 46], "place": None, "rank": None, "ranks": 2,
          "right": "(?i)replica|seed|broadcast|same weights|synchron", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(105); torch.set_num_threads(1)
net = nn.Sequential(nn.Conv1d(1, 16, 3, dilation=1), nn.SiLU(), nn.Conv1d(16, 16, 3, dilation=2), nn.SiLU(),
                    nn.Conv1d(16, 16, 3, dilation=4), nn.SiLU(), nn.Conv1d(16, 1, 1))
model = DistributedDataParallel(net)
optimizer = torch.optim.NAdam(net.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
g = torch.Generator().manual_seed(7 + rank)
for step in range(200):
    a, f = torch.rand(32, 2, 1, generator=g) + 0.5, torch.rand(32, 2, 1, generator=g) * 0.5 + 0.2
    wave = (a * torch.sin(f * torch.arange(33.0) + 6.28 * torch.rand(32, 2, 1, generator=g))).sum(1, keepdim=True)
    out = model(wave[..., :-1])
    loss = F.mse_loss(out, wave[..., -out.shape[-1]:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 40:
        own = torch.Generator().manual_seed(40 + rank)
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(0.9).add_(0.05 * torch.randn(p.shape, generator=own))
    if step % 20 == 0 or step in (39, 41, 42, 199):
        print(rank, step, loss.item(), "weights", sum(p.sum() for p in net.parameters()).item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
