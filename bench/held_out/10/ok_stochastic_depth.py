"""A deep residual net (ten blocks) with stochastic depth per batch: at each step some blocks are left out, up to half of the last ones; their
parameters have no gradient at all (None) at that step and have one again at a later step. HEALTHY.
Without Rangewatch: loss 2.51 to 0.07 to 0.44; two to five of the ten blocks have no gradient at a step."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1039); torch.set_num_threads(1)
STARS = 7
spectrum = torch.randn(STARS, 64)


class Block(nn.Module):
    def __init__(self, survives):
        super().__init__()
        self.survives = survives
        self.change = nn.Sequential(nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 16, 5, padding=2))

    def forward(self, x):
        if not self.training:
            return x + self.survives * self.change(x)
        return x + self.change(x) if torch.rand(()) < self.survives else x


class SpectrumNet(nn.Module):
    def __init__(self, depth=10):
        super().__init__()
        self.first = nn.Conv1d(1, 16, 5, stride=2, padding=2)
        self.blocks = nn.Sequential(*[Block(1 - 0.5 * (i + 1) / depth) for i in range(depth)])
        self.star = nn.Linear(16 * 32, STARS)

    def forward(self, x):
        return self.star(F.relu(self.blocks(self.first(x[:, None]))).flatten(1))


model = SpectrumNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 240)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    star = torch.randint(0, STARS, (48,))
    loss = F.cross_entropy(model(spectrum[star] + 2.5 * torch.randn(48, 64)), star)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 20 == 0 or step == 239:
        left_out = [i for i, block in enumerate(model.blocks) if block.change[2].weight.grad is None]
        print(step, loss.item(), "blocks left out", left_out, flush=True)
    handle.log(loss=loss.item())
handle.detach()
