"""A convolutional net, trained on shapes, is tuned to leaves: first its head alone, at a rate of 0.1 that suits one linear layer. FAULT at step 90: the
backbone is unfrozen and put into the group of the head, whose rate of 0.1 (Adam) tears its trained filters apart.
Without Rangewatch: loss 9.4 to 0.10 to 0.20 at steps 45 to 89, 81 at step 91, 1.8 (chance) from step 94 to the end.
Cause: learning_rate (or optimizer, the group). Step: 90. Right: a smaller rate / a group of its own. Wrong: GradScaler, mask, data."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [89, 96], "place": None, "rank": 0,
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)skip the batch"],
          "right": "(?i)learning.?rate|\\blr\\b|group|warm"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1906); torch.set_num_threads(1)
KINDS = 6


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 24, 3, 1, 1), nn.ReLU())
        self.head = nn.Linear(24, KINDS)

    def forward(self, x):
        return self.head(0.3 * self.backbone(x).mean((2, 3)))


def pictures(n, kinds):
    y = torch.randint(0, KINDS, (n,))
    return kinds[y] + 0.9 * torch.randn(n, 1, 16, 16), y


shapes, leaves = (F.interpolate(torch.randn(KINDS, 1, 6, 6), 16, mode="bilinear") * 1.5 for _ in range(2))
model = Net()
before = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(120):  # the pretraining, not watched
    x, y = pictures(32, shapes)
    before.zero_grad()
    F.cross_entropy(model(x), y).backward()
    before.step()

model.head = nn.Linear(24, KINDS)
model.backbone.requires_grad_(False)
optimizer = torch.optim.Adam(model.head.parameters(), lr=0.1)
handle = rangewatch.attach(model, optimizer)
for step in range(190):
    if step == 90:
        model.backbone.requires_grad_(True)
        optimizer.param_groups[0]["params"].extend(model.backbone.parameters())
    x, y = pictures(32, leaves)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or 88 < step < 98 or step == 189:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
