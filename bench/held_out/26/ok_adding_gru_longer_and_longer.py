"""A GRU adds two marked numbers of a sequence; a curriculum makes it longer, 4, 8, 16, 32. HEALTHY: the loss jumps up where the task gets harder and falls again.
Without Rangewatch: loss 0.97 to 0.106 at step 69, 0.163 at 70; 0.0257 at 200, 0.158 at 210, 0.010 at the end."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(6145); torch.set_num_threads(1)
cell, head = nn.GRU(2, 40, batch_first=True), nn.Linear(40, 1)
net = nn.ModuleDict({"cell": cell, "head": head})
optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(280):
    length = 4 * 2 ** (step // 70)
    value, mark = torch.rand(64, length), torch.zeros(64, length)
    mark.scatter_(1, torch.rand(64, length).argsort(1)[:, :2], 1.0)
    out = head(cell(torch.stack((value, mark), 2))[0][:, -1])[:, 0]
    loss = ((out - (value * mark).sum(1)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step in (69, 70, 210, 279):
        print(step, length, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
