"""HEALTHY: a net of convolutions over sounds whose three lower stages are frozen (requires_grad False) at first and thawed from above, one at step 60, one at step 120, one at step 170,
each with a rate ten times lower than the one above it. All are in the optimizer from the start.
Without Rangewatch: loss 1.38 to 1.28 at step 59, 0.055 at step 119, 0.00006 at the end.
Nothing is wrong; frozen stages have no gradient on purpose."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2242); torch.set_num_threads(1)
time = torch.arange(128.0)


class Sounds(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(nn.Conv1d(i, o, 7, 2, 3) for i, o in ((1, 16), (16, 32), (32, 32)))
        self.head = nn.Linear(64, 4)

    def forward(self, x):
        for stage in self.stages:
            x = F.relu(stage(x))
        return self.head(torch.cat((x.mean(2), x.amax(2)), 1))


def sounds(n):
    y = torch.randint(0, 4, (n,))
    f, phase = (0.15 + 0.12 * y + 0.03 * torch.rand(n))[:, None], 6.2832 * torch.rand(n, 1)
    return (torch.sin(f * time + phase) + 0.3 * torch.randn(n, 128))[:, None], y


model = Sounds()
rates = {"stages.0": 3e-4, "stages.1": 1e-3, "stages.2": 2e-3, "head": 5e-3}
optimizer = torch.optim.Adam([{"params": list(model.get_submodule(n).parameters()), "lr": r} for n, r in rates.items()])
model.stages.requires_grad_(False)
handle = rangewatch.attach(model, optimizer)
for step in range(230):
    if step in (60, 120, 170):
        model.stages[2 - (60, 120, 170).index(step)].requires_grad_(True)
    x, y = sounds(32)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or step in (59, 119, 169, 229):
        print(step, loss.item(), flush=True)
handle.detach()
