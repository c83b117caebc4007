"""Two gloo ranks, a deep kernel Gaussian process in DistributedDataParallel. FAULT at step 90 on rank 1 alone: one reading of its file has a negative
variance, so that the covariance is not positive definite, and torch.linalg.cholesky raises; rank 0 waits and is ended.
Without Rangewatch: losses to -0.22 and -0.19 at step 89; "torch._C._LinAlgError: linalg.cholesky: ... not positive-definite (the leading minor of order
8 ...)" from rank 1 at step 90.
Report: MCZhi/DIPP#6 (cholesky fails at epoch 6 of 20), yookoon/VLAE#5, pytorch/pytorch#27944.
Cause: crash. Step: 90. Rank: 1. Right: raised / LinAlgError / cholesky. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["crash"], "step": [88, 91], "place": None, "rank": 1, "ranks": 2,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "rais|exception|error|traceback|crash|LinAlgError|cholesky|positive"}
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(824); torch.set_num_threads(1)


class DeepKernel(nn.Module):
    """Features for a Gaussian process; the marginal likelihood of a batch's curve is the loss."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 8))
        self.log_noise = nn.Parameter(torch.tensor(-1.0))

    def forward(self, x, y, weight):
        f = self.features(x)
        kernel = torch.exp(-0.5 * torch.cdist(f, f) ** 2) + torch.diag(self.log_noise.exp() * weight)
        root = torch.linalg.cholesky(kernel)
        solved = torch.cholesky_solve(y[:, None], root)[:, 0]
        return (0.5 * (y * solved).sum() + root.diagonal().log().sum()) / len(y)


model = DistributedDataParallel(DeepKernel())
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(400 + rank)
for step in range(180):
    x = torch.rand(48, 3, generator=own) * 4 - 2
    y = torch.sin(2 * x[:, 0]) * x[:, 1].cos() + 0.2 * torch.randn(48, generator=own)
    weight = 0.5 + torch.rand(48, generator=own)
    if step == 90 and rank == 1:
        weight[7] = -3.0  # one reading of rank 1's file has a negative variance
    loss = model(x, y, weight)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 89:
        print(rank, step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
