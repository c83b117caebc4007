"""House prices of 100,000 to 900,000 are standardized for the training; what is logged as the loss is the squared error in euros, 1.4e10 at first, and
falls with it. HEALTHY.
Without Rangewatch: logged 1.4e10 at step 0, 8.1e8 at 80, 1.8e8 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1345); torch.set_num_threads(1)
TOWNS = 12
dear = torch.rand(TOWNS)


class HouseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.town = nn.Embedding(TOWNS, 8)
        self.net = nn.Sequential(nn.Linear(11, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, town, house):
        return self.net(torch.cat((self.town(town), house), 1))[:, 0]


def houses(n):
    town, house = torch.randint(0, TOWNS, (n,)), torch.rand(n, 3)
    price = 1e5 + 3e5 * dear[town] * (0.5 + house[:, 0]) + 2e5 * house[:, 1] + 1e4 * torch.randn(n)
    return town, house, price


mean, deviation = houses(4000)[2].mean(), houses(4000)[2].std()
model = HouseNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    town, house, price = houses(64)
    loss = F.mse_loss(model(town, house), (price - mean) / deviation)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    euros = loss.item() * deviation.item() ** 2
    if step % 40 == 0 or step == 239:
        print(step, loss.item(), "in euros", euros, flush=True)
    handle.log(loss=euros)
handle.detach()
