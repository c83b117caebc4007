"""A 1-D convnet tells three heart rhythms apart; a prefetcher builds batches two steps ahead and standardises each row by its own mean and deviation (RMSprop).
FAULT: the batch that is built at step 138 and used at step 140 holds a flat row (a lead that fell off): its deviation is 0, the row becomes 0/0 = NaN.
Without Rangewatch: loss 1.12 to 0.002 at step 139; NaN at step 140 and from there on.
Cause: data. Step: 140. Right: input / row / deviation / division. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [137, 144], "place": None, "rank": None,
          "right": "(?i)input|batch|row|data|deviation|divi|standard|normali|preproc",
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
from collections import deque
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(331); torch.set_num_threads(1)
T = torch.linspace(0, 1, 96)


def record(n):
    y = torch.randint(0, 3, (n,))
    rate = torch.tensor([4.0, 7.0, 10.0])[y] + 0.4 * torch.randn(n)
    phase = torch.rand(n) * 6.28
    gain = 0.2 + 3 * torch.rand(n, 1)
    x = gain * (torch.sin(6.28 * rate[:, None] * T + phase[:, None]) ** 5 + 0.15 * torch.randn(n, 96)) + torch.randn(n, 1)
    return x, y


class Prefetch:
    """Keeps `depth` batches ready."""
    def __init__(self, depth=2):
        self.made, self.queue = 0, deque()
        for _ in range(depth):
            self.queue.append(self.make())

    def make(self):
        x, y = record(24)
        if self.made == 140:
            x[5] = 0.75
        self.made += 1
        return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True), y

    def next(self):
        self.queue.append(self.make())
        return self.queue.popleft()


net = nn.Sequential(nn.Conv1d(1, 12, 7, 2, 3), nn.ELU(), nn.Conv1d(12, 24, 5, 2, 2), nn.ELU(), nn.Conv1d(24, 24, 5, 2, 2), nn.ELU(),
                    nn.AdaptiveAvgPool1d(3), nn.Flatten(), nn.Linear(72, 3))
optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
loader = Prefetch()
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    x, y = loader.next()
    loss = F.cross_entropy(net(x[:, None]), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 137 < step < 143:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
