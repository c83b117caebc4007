"""A small resnet with batch norm tells four kinds of spots on leaves (20x20 RGB), SGD with momentum; the camera's brightness drifts through the season, as the batch statistics follow.
FAULT at step 60: a thumbnail callback calls `net.eval()` and no one calls `net.train()` after it: the rest of the training runs in eval mode, with batch norm's statistics of step 60 for good (and no dropout), while the pictures drift on.
Without Rangewatch: loss 1.69 to 0.19 at step 59, 0.26 at step 60, 3.4 at step 61, NaN by step 80 (with the call to eval taken out: 0.17, 0.16 and 0.009 at the end).
Cause: eval. Step: 60. Right: train() / training mode. Wrong: GradScaler, attention mask, lower the learning rate."""
EXPECT = {"cause": ["eval"], "step": [59, 90], "place": None, "rank": None,
          "right": r"(?i)\.train\(\)|train mode|training mode|eval", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(4141)
torch.set_num_threads(1)
yy, xx = torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij")


def leaves(n, season):
    kind = torch.randint(0, 4, (n,))
    cy, cx = 5 + 10 * torch.rand(2, n, 1, 1)
    radius = torch.tensor([2.0, 2.0, 4.5, 4.5])[kind][:, None, None]
    far = ((yy - cy) ** 2 + (xx - cx) ** 2).sqrt()
    ring = torch.where((kind % 2 == 0)[:, None, None], (far < radius).float(), ((far - radius).abs() < 1).float())
    light = 0.3 + 3.0 * season
    picture = torch.stack([0.2 + 0.8 * ring, 0.8 - 0.5 * ring, 0.3 + 0.1 * ring], 1)
    return (1 + light) * picture + 0.3 * torch.randn(n, 3, 20, 20), kind


class Unit(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.bn_a = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.b, self.bn_b = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x):
        return F.relu(x + self.bn_b(self.b(F.relu(self.bn_a(self.a(x))))))


class Leaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 12, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(12)
        self.unit1, self.unit2 = Unit(12), Unit(12)
        self.drop = nn.Dropout(0.1)
        self.kinds = nn.Linear(12, 4)

    def forward(self, x):
        h = self.unit2(self.unit1(F.relu(self.bn(self.stem(x)))))
        return self.kinds(self.drop(h.mean((2, 3))))


def thumbnails(net):
    net.eval()
    with torch.no_grad():
        return net(leaves(4, 0.2)[0]).argmax(1).tolist()


leaf = Leaf()
sgd = torch.optim.SGD(leaf.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(leaf, sgd)
for step in range(220):
    if step == 60:
        print("thumbnails", thumbnails(leaf))
    x, y = leaves(32, step / 220)
    out = leaf(x)
    loss = F.cross_entropy(out, y)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    if step % 20 == 0 or step in (59, 61, 219):
        print(step, f"loss {loss.item():.4f} right {(out.argmax(1) == y).float().mean().item():.2f} training {leaf.training}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
