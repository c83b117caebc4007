"""A net with batch norm and dropout tells leaves of trees by their picture. FAULT at step 75: the first check on held back leaves calls model.eval(), and
nothing calls model.train() afterwards: from there on it trains with the means and variances of the first 75 steps, which lag behind (a momentum of 0.01)
and no longer follow the weights, and without dropout.
Without Rangewatch: loss 2.12 to 1.07 at step 74, 6.9 and 7.5 at steps 76 and 77, 2.2 at step 90, 2.08 (that of guessing) at step 120, NaN by step 131; 10%
right on held back leaves; with train() it is 0.46 at the end with 92% right.
Cause: eval. Step: 75 to 110. Right: model.train() / eval / training mode. Wrong: GradScaler, mask, float16."""
EXPECT = {"cause": ["eval"], "step": [74, 112], "place": None, "rank": 0, "least": "info",
          "wrong": ["GradScaler", "attention mask", "float16"],
          "right": "(?i)\\.train\\(|\\beval|training mode|train mode"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1805); torch.set_num_threads(1)
rows, columns = torch.meshgrid(torch.linspace(-1, 1, 20), torch.linspace(-1, 1, 20), indexing="ij")


def leaves(n):
    """The number of lobes tells the tree."""
    tree = torch.randint(0, 8, (n,))
    turn, size = 6.28 * torch.rand(n, 1, 1), 0.45 + 0.2 * torch.rand(n, 1, 1)
    angle, radius = torch.atan2(rows, columns), (rows**2 + columns**2).sqrt()
    edge = size * (1 + 0.35 * torch.cos((tree[:, None, None] + 2) * angle + turn))
    green = torch.sigmoid((edge - radius) * 15)
    return torch.stack((0.3 * green, green, 0.2 * green), 1) + 0.3 * torch.randn(n, 3, 20, 20), tree


def block(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b, momentum=0.01), nn.ReLU(), nn.MaxPool2d(2))


model = nn.Sequential(
    block(3, 16), block(16, 24), nn.Flatten(), nn.Dropout(0.3), nn.Linear(24 * 25, 48), nn.BatchNorm1d(48, momentum=0.01), nn.ReLU(), nn.Linear(48, 8),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
held_x, held_y = leaves(200)
for step in range(230):
    x, tree = leaves(32)
    loss = F.cross_entropy(model(x), tree)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 75 == 74:
        model.eval()
        with torch.no_grad():
            print("held back", (model(held_x).argmax(1) == held_y).float().mean().item())
    if step % 20 == 0 or 72 < step < 80 or step == 229:
        print(step, loss.item(), flush=True)
handle.detach()
