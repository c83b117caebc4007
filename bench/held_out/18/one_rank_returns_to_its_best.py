"""Two ranks train a net that reads the dials of gas meters; gradients are averaged by hand with all_reduce. FAULT at step 68: "restore the best weights
when the loss has risen" looks at the loss of the rank's own batch: rank 1 has had a hard batch and goes back to its best weights, rank 0 doesn't. From
then on the two train different models with each other's gradients.
Without Rangewatch: the ranks' weights are the same until step 67 and up to 2.19 apart from step 68 to the end; rank 1's loss is 0.0006 at step 67, 0.62 at
step 70 and 0.02 at the end, rank 0's 0.000006 at the end.
Cause: replicas (or communication). Step: 68 to 100. Right: rank / replica / broadcast / same weights / synchronise. Wrong: GradScaler, mask, lower the
rate."""
EXPECT = {"cause": ["replicas", "communication"], "step": [67, 120], "place": None, "rank": None, "ranks": 2,
          "wrong": ["GradScaler", "attention mask", "(?i)lower the learning rate"],
          "right": "(?i)rank|replica|broadcast|synchroni|all.?reduce|DistributedDataParallel|DDP"}
import copy
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(1812)
rows, columns = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")


def dials(n, noise):
    digit = torch.randint(0, 10, (n,))
    turn = (digit[:, None, None] + 0.6 * torch.rand(n, 1, 1) + 0.2) * 0.62832
    across = (rows * torch.sin(turn) - columns * torch.cos(turn)).abs()
    along = rows * torch.cos(turn) + columns * torch.sin(turn)
    hand = torch.sigmoid((0.2 - across) * 20) * torch.sigmoid(along * 20)
    return hand[:, None] + noise * torch.randn(n, 1, 16, 16), digit


model = nn.Sequential(
    nn.Conv2d(1, 12, 3, stride=2), nn.LeakyReLU(0.1), nn.Conv2d(12, 24, 3, stride=2), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(216, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9, weight_decay=1e-4)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(5 + rank)
best = copy.deepcopy(model.state_dict())
for step in range(180):
    x, digit = dials(24, 2.5 if (step == 68 and rank == 1) else 0.5)  # a foggy batch
    loss = F.cross_entropy(model(x), digit)
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= 2
    optimizer.step()
    if step == 20:
        best = copy.deepcopy(model.state_dict())  # the last time that somebody looked
    if step > 40 and loss.item() > 2.0:
        model.load_state_dict(best)
        print(rank, "has gone back to its best weights at step", step)
    if step % 20 == 0 or 66 < step < 71 or step == 179:
        mine = torch.cat([p.detach().flatten() for p in model.parameters()])
        other = mine.clone()
        dist.broadcast(other, 0)
        print(rank, step, loss.item(), "apart", (mine - other).abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
dist.destroy_process_group()
