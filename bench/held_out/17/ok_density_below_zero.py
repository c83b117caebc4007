"""HEALTHY. A mixture density net that gives the position of a needle on a dial as three Gaussians; the loss is a negative log-likelihood, which crosses
zero and goes on downward, for a density may well be above 1: a negative loss is right here.
Without Rangewatch: loss 1.13 to -1.06 at step 20, -0.13 at step 40, -2.5 at step 80 and -2.6 at the end."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1625); torch.set_num_threads(1)


class Dial(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.parts = nn.Linear(64, 9)

    def forward(self, x, y):
        share, middle, width = self.parts(self.body(x)).chunk(3, 1)
        log_width = width.clamp(-6, 2)
        each = -0.5 * ((y[:, None] - middle) / log_width.exp()) ** 2 - log_width - 0.919
        return -(share.log_softmax(1) + each).logsumexp(1).mean()


def dials(n):
    y = torch.rand(n)
    x = torch.exp(-((torch.linspace(0, 1, 32) - y[:, None]) / 0.08) ** 2)
    return x + 0.03 * torch.randn(n, 32), y


model = Dial()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    loss = model(*dials(128))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
