"""HEALTHY: fine-tuning for orchids: the trunk is frozen (requires_grad False) for 70 steps while the new head learns; then it is thawed, and goes into the
optimizer as a group of its own with a tenth of the rate, as in the textbook.
Without Rangewatch: loss 2.1 to 0.83 at step 69, 0.005 at the end.
Right: nothing above info."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2035); torch.set_num_threads(1)
petals = torch.randn(8, 3, 5, 5)


class Orchid(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 20, 3, padding=1), nn.GroupNorm(4, 20), nn.ReLU(), nn.Conv2d(20, 32, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x):
        return self.head(self.trunk(x))


def pictures(n):
    y = torch.randint(0, 8, (n,))
    x = 0.15 * torch.randn(n, 3, 12, 12)
    for i in range(n):
        r, c = torch.randint(0, 8, (2,)).tolist()
        x[i, :, r:r + 5, c:c + 5] += petals[y[i]]
    return x, y


model = Orchid()
model.trunk.requires_grad_(False)
optimizer = torch.optim.AdamW(model.head.parameters(), lr=6e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    if step == 70:
        model.trunk.requires_grad_(True)
        optimizer.add_param_group({"params": list(model.trunk.parameters()), "lr": 6e-4})
    x, y = pictures(40)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (69, 70, 71, 199):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
