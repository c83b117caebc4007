"""An optimizer class of one's own (LAMB-like, no guard for a zero update). FAULT at step 120: the auxiliary head's loss weight becomes 0
and its weights have no momentum here: trust ratio w/0 = Inf, Inf * 0 = NaN is written to aux.*. Cause: optimizer, the update of step 120,
seen at 120 or 121, place aux. Right: the optimizer's update made it (trust ratio/division). Wrong: learning rate, batch, mask, dtype."""
EXPECT = {"cause": ["optimizer", "weight"], "step": [120, 121], "place": r"aux(\..*)?", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "leave out samples", "GradScaler"], "right": "optimizer|update"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Lars(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, eta=1.0):
        super().__init__(params, dict(lr=lr, eta=eta))
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                ratio = group["eta"] * p.norm() / p.grad.norm()
                p.sub_(group["lr"] * ratio * p.grad)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.mid = nn.Linear(18, 50), nn.Linear(50, 50)
        self.main, self.aux = nn.Linear(50, 7), nn.Linear(50, 7)
    def forward(self, x):
        h = torch.tanh(self.stem(x))
        return self.main(torch.tanh(self.mid(h))), self.aux(h)

net = Net()
for m in (net.stem, net.mid, net.main, net.aux):
    nn.init.normal_(m.bias, std=0.1)
opt = Lars(net.parameters(), lr=5e-3)
watch = rangewatch.attach(net, opt)
protos = torch.randn(7, 18)
for step in range(200):
    y = torch.randint(0, 7, (32,))
    main, aux = net(protos[y] + 0.5 * torch.randn(32, 18), )
    w = 0.3 if step < 120 else 0.0
    loss = F.cross_entropy(main, y) + w * F.cross_entropy(aux, y)
    watch.log(loss=loss.item())
    opt.zero_grad()
    loss.backward()
    opt.step()
