"""A net with two gated layers that tells five kinds of engine noise apart, with a Lion optimizer of its own. FAULT from step 0 on: the decay is p.mul_(1 - decay) and
not p.mul_(1 - rate * decay): with a decay of 0.1 every weight loses a tenth at each step, five hundred times more than is meant; the weights fall to nearly nothing.
Without Rangewatch: norm of the weights 10.3 to 3.0 at step 20; loss 1.62 to 1.54 at step 8 and 1.48 to 1.56 to the end; with rate * decay it is 0.25 to 0.52 at the end.
Cause: regularization (or optimizer: the update rule; or weight: they collapse). Step: from 0 on, a state. Right: weight decay / decoupled / multiply by the rate.
Wrong: GradScaler, attention mask, lower the learning rate."""
EXPECT = {"cause": ["regularization", "optimizer"], "step": [0, 199], "place": None, "rank": 0,
          "right": "(?i)decay", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2402); torch.set_num_threads(1)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=2e-3, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            a, b = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["weight_decay"])
                p.add_((a * m + (1 - a) * p.grad).sign(), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - b)


class Gated(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.value, self.gate = nn.Linear(i, o), nn.Linear(i, o)

    def forward(self, x):
        return self.value(x) * torch.sigmoid(self.gate(x))


centres = torch.randn(5, 40)
net = nn.Sequential(Gated(40, 96), Gated(96, 96), nn.Linear(96, 5))
optimizer = Lion(net.parameters())
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    kind = torch.randint(0, 5, (48,))
    noise = centres[kind] * torch.rand(48, 1) + 0.5 * torch.randn(48, 40)
    loss = F.cross_entropy(net(noise), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 10 or step == 199:
        print(step, loss.item(), "norm of the weights", sum(p.norm() ** 2 for p in net.parameters()).sqrt().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
