"""A recurrent net that names the knot from the path of a rope's end. FAULT from step 130 to step 139: the loader of one shard joins paths and names in another
order, so the names are those of other ropes of the batch; the shard after it is right again.
Without Rangewatch: loss 2.08 to 0.026 at step 129, 6.2 at step 130, 5.5 at step 131, 2.2 at step 139, 1.8 at step 140, 0.021 at the end.
Cause: data. Step: 130. Right: labels / targets / batch / shuffled. Wrong: GradScaler, mask, lower the learning rate."""
EXPECT = {"cause": ["data"], "step": [129, 134], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "label|target|batch|data|shuffl"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1603); torch.set_num_threads(1)
KNOTS = 8
shapes = torch.randn(KNOTS, 3, 4)
time = torch.arange(24.0) / 24


class KnotNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.path = nn.LSTM(3, 40, batch_first=True)
        self.name = nn.Linear(40, KNOTS)

    def forward(self, x):
        return self.name(self.path(x)[0].mean(1))


def ropes(n):
    y = torch.randint(0, KNOTS, (n,))
    waves = torch.stack([torch.sin(6.2832 * k * time + k) for k in range(1, 5)])
    return (shapes[y] @ waves).transpose(1, 2) + 0.3 * torch.randn(n, 24, 3), y


model = KnotNet()
optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, y = ropes(48)
    if 130 <= step < 140:
        y = y[torch.randperm(len(y))]
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 127 < step < 146 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
