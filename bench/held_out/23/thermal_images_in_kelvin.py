"""A net of depthwise convolutions that tells from a thermal image how many people are in a room. FAULT from step 120 on: the mean temperature (295 K) is
not taken off any more after a change of the loader; the values are 290 to 300 instead of about 0.
Without Rangewatch: loss 1.37 to 0.024 at step 119, 2,852 at step 120, 1,537 at step 123, 1.1 at the end.
Causes: data. Right: input / mean / normalise / batch. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [119, 122], "place": None, "rank": 0,
          "right": "(?i)input|data|batch|mean|normali|loader", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2323); torch.set_num_threads(1)
axis = torch.arange(16.0)


def room(n):
    people = torch.randint(0, 5, (n,))
    image = torch.randn(n, 16, 16) * 0.3
    for k in range(4):
        at = 15 * torch.rand(n, 2, 1)
        warm = torch.exp(-((axis - at[:, 0]) / 1.5) ** 2)[:, :, None] * torch.exp(-((axis - at[:, 1]) / 1.5) ** 2)[:, None]
        image += 4 * warm * (people > k)[:, None, None]
    return 295 + image[:, None], people.float()


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 24, 3, padding=1)
        self.deep = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1, groups=24) for _ in range(2))
        self.point = nn.ModuleList(nn.Conv2d(24, 24, 1) for _ in range(2))
        self.count = nn.Linear(24, 1)

    def forward(self, x):
        h = torch.relu(self.stem(x))
        for deep, point in zip(self.deep, self.point):
            h = h + torch.relu(point(deep(h)))
        return self.count(h.mean((2, 3)))[:, 0]


model = Counter()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    kelvin, people = room(32)
    image = kelvin - 295 if step < 120 else kelvin
    loss = nn.functional.huber_loss(model(image), people)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 118 < step < 124 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
