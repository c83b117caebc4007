"""Two gloo ranks, a latent diffusion denoiser in DistributedDataParallel. FAULT at step 140: rank 1's bucket holds one latent of another size, its
collate function raises "stack expects each tensor to be equal size" and the process ends; rank 0 is left in its all-reduce and fails a little
later.
Without Rangewatch: both ranks 1.0 to 0.5 at step 139; rank 1 ends with RuntimeError in torch.stack at step 140, rank 0 with "Connection closed by
peer".
Report: bghira/SimpleTuner#59 (stack expects each tensor to be equal size, [4, 128, 170] and [4, 96, 128]), YuzheWangPKU/DiffPepBuilder#19
(torchrun).
Cause: crash (or data). Rank 1. Step: 139 to 141. Right: rank 1 / stack / traceback / exception / collate. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["crash", "data"], "step": [138, 142], "place": None, "rank": 1, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "rank 1|stack|traceback|exception|raise|collate|stderr|log|RuntimeError|size"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(708); torch.set_num_threads(1)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Linear(1, 24)
        self.first = nn.Conv2d(4, 24, 3, padding=1)
        self.middle = nn.Conv2d(24, 24, 3, padding=1)
        self.last = nn.Conv2d(24, 4, 3, padding=1)

    def forward(self, x, t):
        h = F.silu(self.first(x) + self.time(t)[:, :, None, None])
        return self.last(F.silu(self.middle(h)))


def load(step):
    size = (12, 17) if rank == 1 and step == 140 else (12, 16)
    latents = [base[i] + 0.1 * torch.randn(4, 12, 16) for i in torch.randint(0, 8, (7,)).tolist()]
    latents.append(F.interpolate(latents[0][None], size)[0])
    return torch.stack(latents)


base = torch.randn(8, 4, 12, 16)
model = nn.parallel.DistributedDataParallel(Denoiser())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(10 + rank)
for step in range(220):
    x = load(step)
    t, noise = torch.rand(8, 1), torch.randn(8, 4, 12, 16)
    a = torch.cos(t * 1.5)[:, :, None, None]
    loss = F.mse_loss(model(a * x + (1 - a * a).sqrt() * noise, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step > 137:
        print(rank, step, loss.item(), flush=True)
handle.detach()
dist.destroy_process_group()
