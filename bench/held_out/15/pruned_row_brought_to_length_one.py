"""A net that tells plants by a leaf, with a prototype for each on the unit sphere; each row is brought to length one after the step. FAULT at step 100: a
prototype is pruned to zero, and 0 / 0 writes NaN into its row of the weight.
Without Rangewatch: loss 2.76 to 0.11 at step 99, 0.21 at step 100 (24 NaN weights after it), NaN from step 101 on (all 240).
Cause: weight. Step: 100. Place: prototypes.weight. Right: weight / NaN / norm / division. Wrong: GradScaler, mask, learning rate, overflow."""
EXPECT = {"cause": ["weight"], "step": [99, 102], "place": ".*(proto).*", "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate", "overflow"],
          "right": "weight|parameter|NaN|divi|norm"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1511); torch.set_num_threads(1)
PLANTS = 10
leaf = torch.randn(PLANTS, 16)


class LeafNet(nn.Module):
    """Embeds a leaf on the sphere and compares it to one prototype of each plant."""
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Linear(64, 24))
        self.prototypes = nn.Linear(24, PLANTS, bias=False)

    def forward(self, x):
        return 12 * self.prototypes(F.normalize(self.embed(x), dim=1))


def leaves(n):
    y = torch.randint(0, PLANTS, (n,))
    return leaf[y] + 0.9 * torch.randn(n, 16), y


model = LeafNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = leaves(64)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        w = model.prototypes.weight
        if step == 100:
            w[torch.tensor([3])] = 0.0  # plant 3 is split in two species next week; its prototype is pruned until then
        w.div_(w.norm(dim=1, keepdim=True))  # prototypes stay on the sphere
    if step % 20 == 0 or 98 < step < 103 or step == 199:
        print(step, loss.item(), "NaN weights", int(w.isnan().sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
