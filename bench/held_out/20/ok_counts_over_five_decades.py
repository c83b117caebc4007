"""HEALTHY: counts of insects in traps, from 0 to some 100,000; the net gives the log of the rate and the loss is that of Poisson, so that single batches have a
loss several times as large as others; the gradient is clipped in the largest of them, before the step.
Without Rangewatch: loss 7,202 to 21, 12 to 54 in the last fifty steps; counts up to 99,762.
Right: nothing above info."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2039); torch.set_num_threads(1)


class Traps(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(12, 6)
        self.net = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        nn.init.constant_(self.net[4].bias, 5.0)

    def forward(self, kind, weather):
        return self.net(torch.cat((self.kind(kind), weather), 1))[:, 0]


common = 5 + 2.0 * torch.randn(12)
model = Traps()
optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 250)
handle = rangewatch.attach(model, optimizer)
for step in range(250):
    kind, weather = torch.randint(0, 12, (128,)), torch.randn(128, 4)
    count = torch.poisson((common[kind] + weather[:, 0] + 0.7 * weather[:, 1]).clamp(max=11.5).exp())
    log_rate = model(kind, weather)
    loss = nn.functional.poisson_nll_loss(log_rate, count, log_input=True, full=True)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 2000.0)
    optimizer.step()
    schedule.step()
    if step % 20 == 0 or step == 249:
        print(step, loss.item(), "norm", norm.item(), "largest count", count.max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
