"""A net that picks one of 30 moves; illegal ones are set to -inf before the softmax, and up to 29 of 30 are illegal. HEALTHY: at least one move stays legal in each row, and
where only that one is legal the loss of the row is 0 with no gradient.
Without Rangewatch: loss 2.55 to 0.48, the fewest legal moves in a row are 1."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3023); torch.set_num_threads(1)
value = torch.randn(16, 30)
net = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 30))
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    x = torch.randn(96, 16)
    worth = x @ value
    legal = torch.rand(96, 30) < torch.rand(96, 1)
    legal[torch.arange(96), torch.randint(0, 30, (96,))] = True
    best = worth.masked_fill(~legal, float("-inf")).argmax(1)
    logits = net(x).masked_fill(~legal, float("-inf"))
    loss = F.cross_entropy(logits, best)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "fewest legal", legal.sum(1).min().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
