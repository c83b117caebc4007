"""Two gloo ranks, a weather model with two heads; gradients are copied into one flat buffer and all-reduced. FAULT at step 110: rank 1's batch has no wind
targets, its wind head no gradient, and the place in the buffer keeps what torch.empty gave (NaN, made the same for each run). Both losses and all own
gradients are finite, the reduced gradient of the wind head is NaN on both ranks.
Without Rangewatch: losses 3.0 and 4.2 to 0.045 and 0.17 at step 109, finite at step 110, NaN from step 111 on.
Report: deepspeedai/DeepSpeed#291 (gradients of None must be zeros), fla-org/flash-linear-attention#892 and pytorch/FBGEMM#5754 (gradient buffers that were
empty and not zero).
Cause: communication. Step: 110. Place: the wind head. Right: reduce / buffer / bucket / ranks. Wrong: lower the learning rate, mask, GradScaler."""
EXPECT = {"cause": ["communication"], "step": [110, 111], "place": r".*(wind|head).*|", "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "GradScaler"],
          "right": "reduc|communicat|bucket|rank|buffer|collective|hook"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(823); torch.set_num_threads(1)
truth = torch.randn(10, 2) / 3


class Weather(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.GRU(10, 32, batch_first=True)
        self.rain_head, self.wind_head = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, x):
        h = self.trunk(x)[0][:, -1]
        return self.rain_head(h).squeeze(1), self.wind_head(h).squeeze(1)


class FlatReducer:
    """One buffer for all gradients, one all-reduce."""

    def __init__(self, model):
        self.parameters = list(model.parameters())
        self.size = sum(p.numel() for p in self.parameters)

    def __call__(self):
        flat = torch.empty(self.size)  # as new memory comes: torch.empty gives what lay there
        flat.fill_(float("nan"))       # made the same for each run
        at = 0
        for p in self.parameters:
            if p.grad is not None:  # a hole is left for those without
                flat[at:at + p.numel()] = p.grad.flatten()
            at += p.numel()
        dist.all_reduce(flat)
        flat /= world
        at = 0
        for p in self.parameters:
            p.grad = flat[at:at + p.numel()].view_as(p).clone()
            at += p.numel()


model = Weather()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
reduce_gradients = FlatReducer(model)
handle = rangewatch.attach(model, optimizer)
own = torch.Generator().manual_seed(300 + rank)
for step in range(180):
    x = torch.randn(32, 8, 10, generator=own)
    rain, wind = (x.mean(1) @ truth * 3 + 0.1 * torch.randn(32, 2, generator=own)).unbind(1)
    out_rain, out_wind = model(x)
    loss = F.mse_loss(out_rain, rain)
    if step != 110 or rank == 0:  # rank 1's batch of step 110 is of stations without an anemometer
        loss = loss + F.mse_loss(out_wind, wind)
    optimizer.zero_grad()
    loss.backward()
    local = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
    reduce_gradients()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 113 or step == 179:
        print(rank, step, loss.item(), "own norm", local, "reduced norm of the wind head", model.wind_head.weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
