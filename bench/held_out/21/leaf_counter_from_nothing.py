"""A convolutional net that tells the number of leaves in a picture; the author clears all parameters "for a run that can be repeated". FAULT at step 0: all weights
and biases are 0, so each activation is 0 and no gradient passes a layer: of 14 tensors the bias of the last layer alone ever moves.
Without Rangewatch: loss 1.609 (ln 5) at step 0, 1.606 to 1.616 to the end; say.bias alone is not 0.
Cause: weight (initialisation), shown as no gradient or dead units. Step: 0 to the end, a state. Right: initialise / zero / symmetry. Wrong: GradScaler,
lower the learning rate, mask."""
EXPECT = {"cause": ["weight", "no_gradient", "dead_units"], "step": [0, 179], "place": None, "rank": 0,
          "right": "(?i)init|zero|symmetr|gradient|dead|weight", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2107)
torch.set_num_threads(1)


def leaves(n):
    count = torch.randint(0, 5, (n,))
    picture = 0.1 * torch.randn(n, 1, 12, 12)
    for i in range(n):
        for _ in range(int(count[i])):
            r, c = torch.randint(0, 11, (2,)).tolist()
            picture[i, 0, r:r + 2, c:c + 2] += 1.0
    return picture, count


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.eye = nn.ModuleList([nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)])
        self.think = nn.ModuleList([nn.Linear(32 * 9, 96), nn.Linear(96, 64), nn.Linear(64, 32)])
        self.say = nn.Linear(32, 5)

    def forward(self, x):
        for conv in self.eye:
            x = F.relu(conv(x))
        x = F.adaptive_avg_pool2d(x, 3).flatten(1)
        for linear in self.think:
            x = F.relu(linear(x))
        return self.say(x)


model = Counter()
with torch.no_grad():
    for p in model.parameters():
        p.zero_()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    x, y = leaves(32)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 179:
        moved = [n for n, p in model.named_parameters() if p.abs().sum() > 0]
        print(step, loss.item(), "not zero:", moved, flush=True)
    handle.log(loss=loss.item())
handle.detach()
