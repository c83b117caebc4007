"""A net that foretells the discharge of a river in litres a second (up to some 100000), mean squared error in those units. HEALTHY: the loss is of the order of 1e9 and the gradients
of some 1e9 at the start, but Adam does not care for the scale, the last layer is multiplied by a fixed 30000, and the loss falls steadily.
Without Rangewatch: loss 3.9e9 to 1.6e7, the variance of the target is 2e8 to 7e8."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3026); torch.set_num_threads(1)


class River(nn.Module):
    def __init__(self):
        super().__init__()
        self.rain = nn.GRU(3, 32, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return 30000.0 * self.head(self.rain(x)[0][:, -1])


def days(n):
    rain = torch.rand(n, 15, 3).pow(3) * 3
    stock = torch.zeros(n)
    for k in range(15):
        stock = 0.8 * stock + rain[:, k].mean(1)
    return rain, (stock ** 1.5 * 8000 * (1 + 0.05 * torch.randn(n)))[:, None]


net = River()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    x, y = days(48)
    loss = (net(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "variance", y.var().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
