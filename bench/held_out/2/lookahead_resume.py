"""Ranger-like training (AdamW inside a Lookahead, k = 6, alpha = 0.5) of a depthwise-separable net. FAULT at step 150: the job is preempted and resumed
in place; weights and the inner optimizer's state come back, the Lookahead's slow weights do not: they are those of the new process' model before the
checkpoint was read. At the next synchronisation (step 155) the weights move halfway back to that random start, and again six steps later: the loss
jumps to that of chance, then recovers. Report: tensorflow/addons#1911 ('slow' is not restored, the training does not go on), mgrankin/over9000#8.
Cause: optimizer (its state), step 150 to 156. Right: the optimizer's state / checkpoint. Wrong: lower the learning rate, data, mask, precision."""
EXPECT = {"cause": ["optimizer"], "step": [150, 157], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler", "leave out samples"],
          "right": "optimizer('s)? (state|step)|checkpoint|resum|restor|was loaded|wrote|written"}
import copy
import torch
from torch import nn
import rangewatch

torch.manual_seed(5); torch.set_num_threads(1)


class Lookahead:
    def __init__(self, inner, k=6, alpha=0.5):
        self.inner, self.k, self.alpha, self.count = inner, k, alpha, 0
        self.slow = [[p.detach().clone() for p in g["params"]] for g in inner.param_groups]

    def zero_grad(self):
        self.inner.zero_grad()

    @torch.no_grad()
    def step(self):
        self.inner.step()
        self.count += 1
        if self.count % self.k == 0:
            for group, slow in zip(self.inner.param_groups, self.slow):
                for p, s in zip(group["params"], slow):
                    s.lerp_(p, self.alpha)
                    p.copy_(s)


def block(i, o, stride):
    return nn.Sequential(nn.Conv2d(i, i, 3, stride, 1, groups=i, bias=False), nn.GroupNorm(4, i), nn.Hardswish(),
                         nn.Conv2d(i, o, 1, bias=False), nn.GroupNorm(4, o), nn.Hardswish())


def build():
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), block(16, 32, 2), block(32, 32, 1), block(32, 48, 2),
                         nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(192, 10))


net = build()
inner = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.02)
optimizer = Lookahead(inner)
watch = rangewatch.attach(net, inner)
proto = torch.randn(10, 3, 14, 14)
for step in range(270):
    if step == 150:
        checkpoint = copy.deepcopy({"net": net.state_dict(), "optimizer": inner.state_dict(), "count": optimizer.count})
        fresh = build()
        net.load_state_dict(fresh.state_dict())
        optimizer = Lookahead(inner)
        net.load_state_dict(checkpoint["net"])
        inner.load_state_dict(checkpoint["optimizer"])
        optimizer.count = checkpoint["count"]
    label = torch.randint(0, 10, (32,))
    loss = nn.functional.cross_entropy(net(proto[label] + torch.randn(32, 3, 14, 14)), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 10 == 0 or 148 <= step < 172:
        print(step, round(loss.item(), 4))
