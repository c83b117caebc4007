"""HEALTHY: BYOL: online and momentum encoder in one module (the target needs no gradient), predictor, cosine loss that starts high; 400 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(24, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
        self.predictor = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
        self.target = copy.deepcopy(self.online).requires_grad_(False)
    def forward(self, a, b):
        with torch.no_grad():
            ta, tb = self.target(a), self.target(b)
        pa, pb = self.predictor(self.online(a)), self.predictor(self.online(b))
        return 4 - 2 * (F.cosine_similarity(pa, tb).mean() + F.cosine_similarity(pb, ta).mean())
    @torch.no_grad()
    def update(self, m=0.99):
        for t, o in zip(self.target.parameters(), self.online.parameters()):
            t.lerp_(o, 1 - m)

net = BYOL()
opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.05, momentum=0.9, weight_decay=1e-4)
rangewatch.attach(net, opt)
protos = torch.randn(12, 24)
for step in range(400):
    x = protos[torch.randint(0, 12, (48,))]
    loss = net(x + 0.5 * torch.randn_like(x), x * (torch.rand_like(x) > 0.2))
    opt.zero_grad(); loss.backward(); opt.step()
    net.update()
