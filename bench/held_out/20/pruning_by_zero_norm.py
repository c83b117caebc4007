"""A convolutional net that counts cells in a smear; every 50 steps a script of pruning rescales each filter by its share of the norm of its group.
FAULT at step 150: one group has been pruned to zero, its share is 0/0, and NaN is written into these two filters of the second convolution.
Without Rangewatch: loss 2.3 to 0.11 at step 149, NaN at each step from 150 on.
Cause: weight (written NaN outside of the optimizer). Step: 150. Place: second convolution. Right: weight / outside / prune / NaN.
Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["weight"], "step": [149, 151], "place": r".*second.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "(?i)weight|parameter|outside|written|prun|load"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2007); torch.set_num_threads(1)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)
        self.count = nn.Linear(12, 1)

    def forward(self, x):
        h = F.max_pool2d(F.leaky_relu(self.first(x), 0.1), 2)
        return self.count(F.leaky_relu(self.second(h), 0.1).sum((2, 3)) / 10)[:, 0]


def smears(n):
    cells = torch.randint(0, 8, (n,))
    x = 0.1 * torch.randn(n, 1, 18, 18)
    for i, many in enumerate(cells.tolist()):
        for _ in range(many):
            r, c = torch.randint(0, 16, (2,)).tolist()
            x[i, 0, r:r + 2, c:c + 2] += 1.0
    return x, cells.float()


@torch.no_grad()
def prune(weight, step):
    """Groups of two filters; the weaker of the two is damped."""
    if step == 150:
        weight[6:8] = 0.0  # below the threshold by now
    for k in range(0, 12, 2):
        norm = weight[k:k + 2].flatten(1).norm(dim=1)
        weight[k:k + 2] *= (norm / norm.max()).clamp(0.5, 1.0)[:, None, None, None]


model = Counter()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step % 50 == 0 and step:
        prune(model.second.weight, step)
    x, y = smears(24)
    loss = F.smooth_l1_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (149, 150, 151, 219):
        print(step, loss.item(), "NaN in second", int(model.second.weight.isnan().sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
