"""Inception-like 1-D CNN with depthwise-separable paths; one process. FAULT at step 80: a label equals the number of classes: cross_entropy
raises IndexError between forward and backward and the process dies. Cause: crash, step 80, rank 0. Right: the traceback/exception named
(Target 6 is out of bounds). Wrong: learning rate, out of memory, NaN."""
EXPECT = {"cause": ["crash", "data"], "step": [79, 81], "place": None, "rank": 0, "wrong": ["learning rate", "[Mm]ask", "memory"], "right": "traceback|stack|label|target"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Multi(nn.Module):
    def __init__(self):
        super().__init__()
        self.paths = nn.ModuleList(nn.Sequential(nn.Conv1d(8, 8, k, padding=k // 2, groups=8), nn.Conv1d(8, 12, 1), nn.Hardswish()) for k in (1, 3, 7))
        self.fc = nn.Linear(36, 6)
    def forward(self, x):
        return self.fc(torch.cat([p(x) for p in self.paths], 1).mean(-1))

net = Multi()
opt = torch.optim.AdamW(net.parameters(), 2e-3)
rangewatch.attach(net, opt)
protos = torch.randn(6, 8, 24)
for step in range(150):
    y = torch.randint(0, 6, (32,))
    x = protos[y] + torch.randn(32, 8, 24)
    if step == 80:
        y[3] = 6
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
