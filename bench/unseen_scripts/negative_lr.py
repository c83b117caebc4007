"""Highway network on tabular data, SGD with a linear decay 1 - step/150 that is not clamped. FAULT from step 150: the rate is negative, the
training climbs. Cause: learning_rate, step from 150 on (seen up to 290). Right: learning rate (negative).
Wrong: mask, leave out batches, 'go back and leave out the batches', checkpoint, GradScaler; 'lower the learning rate' alone is silly."""
EXPECT = {"cause": ["learning_rate"], "step": [150, 300], "place": None, "rank": 0,
          "wrong": ["[Mm]ask", "leave out", "GradScaler"], "right": "learning rate"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Highway(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.h, self.t = nn.Linear(d, d), nn.Linear(d, d)
        nn.init.constant_(self.t.bias, -1.0)
    def forward(self, x):
        g = torch.sigmoid(self.t(x))
        return g * F.softsign(self.h(x)) + (1 - g) * x

net = nn.Sequential(nn.Linear(14, 32), Highway(32), Highway(32), nn.Linear(32, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 1 - s / 150)
watch = rangewatch.attach(net, opt)
protos = torch.randn(4, 14)
for step in range(300):
    y = torch.randint(0, 4, (32,))
    loss = F.cross_entropy(net(protos[y] + 1.2 * torch.randn(32, 14)), y)
    opt.zero_grad(); loss.backward(); opt.step(); sched.step()
    watch.log(loss=loss.item())
