"""HEALTHY: SAM (two forward-backwards a step, the weights perturbed between), ConvNet with BatchNorm, 400 steps. Nothing above info."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kw):
        super().__init__(params, dict(rho=rho, **kw))
        self.base = base(self.param_groups, **kw)
        self.param_groups = self.base.param_groups
    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for g in self.param_groups:
            for p in g["params"]:
                self.state[p]["e"] = p.grad * g["rho"] / (norm + 1e-12)
                p.add_(self.state[p]["e"])
        self.zero_grad()
    @torch.no_grad()
    def second_step(self):
        for g in self.param_groups:
            for p in g["params"]:
                p.sub_(self.state[p]["e"])
        self.base.step()
        self.zero_grad()
    def step(self, closure=None):
        raise NotImplementedError

net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 6))
opt = SAM(net.parameters(), torch.optim.SGD, lr=0.03, momentum=0.9)
watch = rangewatch.attach(net, opt)
protos = torch.randn(6, 1, 12, 12)
for step in range(400):
    y = torch.randint(0, 6, (32,))
    x = protos[y] + torch.randn(32, 1, 12, 12)
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    opt.first_step()
    F.cross_entropy(net(x), y).backward()
    opt.second_step()
    watch.log(loss=loss.item())
