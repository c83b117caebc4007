"""ArcFace head with acos and no clamp. FAULT at step 160: class centres are refreshed from a batch's embeddings; the cosines are 1 or a
little above: acos is NaN, or its derivative Inf. Cause: forward_arithmetic or backward_arithmetic, step 160, place head.
Right: clamp the cosine. Wrong: learning rate, mask, batch, dtype, 'the weight held NaN'."""
EXPECT = {"cause": ["forward_arithmetic", "backward_arithmetic"], "step": [160, 160], "place": r"(head.*|)", "rank": 0,
          "wrong": ["learning rate", "[Mm]ask", "leave out samples", "GradScaler", "bfloat16"], "right": "sqrt|clamp|acos|away|inside|anomaly"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2); torch.set_num_threads(1)

class ArcHead(nn.Module):
    def __init__(self, d, classes, m=0.2, s=16.0):
        super().__init__()
        self.centres, self.m, self.s = nn.Parameter(torch.randn(classes, d)), m, s
    def forward(self, emb, y):
        cos = F.normalize(emb) @ F.normalize(self.centres).t()
        theta = torch.acos(cos)
        hot = F.one_hot(y, cos.shape[1]).bool()
        return self.s * torch.where(hot, torch.cos(theta + self.m), cos)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(30, 64), nn.BatchNorm1d(64), nn.PReLU(), nn.Linear(64, 24))
        self.head = ArcHead(24, 12)
    def forward(self, x, y):
        return self.head(self.trunk(x), y)

net = Net()
opt = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=5e-4)
rangewatch.attach(net, opt)
protos = torch.randn(12, 30)
for step in range(220):
    y = torch.arange(36) % 12
    x = protos[y] + 0.4 * torch.randn(36, 30)
    if step == 160:
        with torch.no_grad():                     # prototypes from the very batch that comes next
            net.head.centres.copy_(net.trunk(x)[:12])
    loss = F.cross_entropy(net(x, y), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
