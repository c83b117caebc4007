"""Two gloo ranks with DDP, a temporal convolution net, ReduceLROnPlateau. FAULT at step 99: each rank steps the scheduler with the loss of its own part of
the validation set. After the fifth look rank 0's rate is 8e-5 and rank 1's 4e-4, so that from step 100 on equal gradients give different weights.
All is finite and both losses go down. Without Rangewatch: loss 0.64 and 0.66 at step 19, 0.09 and 0.09 at the end; the largest difference of out.weight
between ranks is 0.0 to step 99, 0.0033 at step 119, 0.0036 at the end.
Report: rmchurch/disruptcnn#3 (ReduceLROnPlateau is given the local loss in a distributed run; there it is suspected and shows as a rate that is not
reduced, so that the analogy is loose).
Cause: replicas (or learning rate). Step: 99 or 100, seen up to 140. Right: same rate on all ranks / synchronise. Wrong: GradScaler, mask, clip."""
EXPECT = {"cause": ["replicas", "learning_rate"], "step": [99, 140], "place": None, "rank": None, "ranks": 2,
          "wrong": ["GradScaler", "attention mask", "[Cc]lip"],
          "right": "rank|replica|synchron|schedul|learning rate|same"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(623); torch.set_num_threads(1)


class TCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv1d(8 if i == 0 else 24, 24, 3, padding=2 ** i, dilation=2 ** i) for i in range(3)])
        self.out = nn.Linear(24 * 32, 1)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.out(x.flatten(1))[:, 0]


model = nn.parallel.DistributedDataParallel(TCN())
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.2, patience=0, threshold=0.01)
handle = rangewatch.attach(model, optimizer)
shape = torch.randn(1, 8, 32)


def batch(n):
    y = (torch.rand(n) < 0.5).float()
    return 0.25 * y[:, None, None] * shape + torch.randn(n, 8, 32), y


torch.manual_seed(400 + rank)
held = batch(32)  # each rank's own part of the validation set
for step in range(240):
    x, y = batch(16)
    loss = F.binary_cross_entropy_with_logits(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        model.eval()
        with torch.no_grad():
            value = F.binary_cross_entropy_with_logits(model.module(held[0]), held[1])
        model.train()
        scheduler.step(value)  # of this rank alone
        mine = model.module.out.weight.detach().clone()
        other = mine.clone()
        dist.broadcast(other, 0)
        print(rank, step, loss.item(), value.item(), optimizer.param_groups[0]["lr"], "from rank 0", (mine - other).abs().max().item(), flush=True)
handle.detach()
dist.destroy_process_group()
