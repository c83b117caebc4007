"""Triplet loss with a hand-written distance sqrt(sum (a-p)^2). FAULT at step 150: one positive is the anchor itself (duplicate in the
sampler): sqrt'(0) * 0 = NaN in the backward, the forward and the loss are finite. Cause: backward_arithmetic, step 150,
place fc2/whole model grad_output. Right: eps below the sqrt. Wrong: learning rate, mask, weights, 'samples that are not finite'."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [150, 150], "place": r"(fc2|net.*|)", "rank": 0,
          "wrong": ["learning rate", "[Mm]ask", "checkpoint", "samples that are not finite", "GradScaler", "bfloat16"], "right": "sqrt|norm|anomaly"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 12, 3, 2), nn.Conv2d(12, 24, 3, 2)
        self.fc1, self.fc2 = nn.Linear(24 * 4, 64), nn.Linear(64, 16)
    def forward(self, x):
        h = F.silu(self.conv2(F.silu(self.conv1(x)))).flatten(1)
        return self.fc2(F.silu(self.fc1(h)))

def dist(a, b):
    return (a - b).pow(2).sum(1).sqrt()

net = Embedder()
opt = torch.optim.Adam(net.parameters(), 1e-3)
watch = rangewatch.attach(net, opt)
protos = torch.randn(8, 1, 12, 12)
def draw(y):
    return protos[y] + 0.6 * torch.randn(len(y), 1, 12, 12)
for step in range(220):
    y = torch.randint(0, 8, (32,))
    n = (y + torch.randint(1, 8, (32,))) % 8
    a, p, neg = draw(y), draw(y), draw(n)
    if step == 150:
        p[4] = a[4]
    ea, ep, en = net(torch.cat([a, p, neg])).chunk(3)
    loss = F.relu(dist(ea, ep) - dist(ea, en) + 5.0).mean()
    watch.log(loss=loss.item())
    opt.zero_grad(); loss.backward(); opt.step()
