"""A net with embeddings of sender and route forecasts how long a packet takes; its targets are nanoseconds, 30 to 90 million of them. FAULT from step 0:
they are not scaled: the answers begin at 0, MSE is 3e15, and Adam at 0.002 would need tens of thousands of steps to come near.
Without Rangewatch: loss 3.8e15 at step 0, 4.3e15 at the end.
Variant of: targets_are_prices.
Cause: data (the targets' scale). Step: from the start. Right: targets / scale / normalize / standardize / log. Wrong: lower the learning rate, GradScaler,
mask."""
EXPECT = {"cause": ["data"], "step": [0, 110], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "target|scal|normali[sz]|standardi[sz]|unit|logarithm"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1328); torch.set_num_threads(1)
SENDERS, ROUTES = 15, 10
far, busy = torch.rand(SENDERS), torch.rand(ROUTES)


class DelayNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.sender, self.route = nn.Embedding(SENDERS, 12), nn.Embedding(ROUTES, 12)
        self.net = nn.Sequential(nn.Linear(25, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, sender, route, size):
        return self.net(torch.cat((self.sender(sender), self.route(route), size), 1))[:, 0]


def packets(n):
    sender, route, size = torch.randint(0, SENDERS, (n,)), torch.randint(0, ROUTES, (n,)), torch.rand(n, 1)
    delay_ms = 30 + 20 * far[sender] + 20 * busy[route] + 18 * size[:, 0] + 2 * torch.randn(n)
    return sender, route, size, 1e6 * delay_ms


model = DelayNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    sender, route, size, delay = packets(48)
    loss = F.mse_loss(model(sender, route, size), delay)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
