"""Schedule-free SGD written by hand: gradients are taken at y, between the averaged x and the iterate z; for each validation the model is switched to
x and back to y, in place. The rate is constant after a warmup. HEALTHY. Without Rangewatch: loss 1.95 to 0.02, in validation 1.87 to 0.016, always
a little better than in training."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(525); torch.set_num_threads(1)


class ScheduleFree(torch.optim.Optimizer):
    def __init__(self, params, lr, beta=0.9, warmup=20):
        super().__init__(params, {"lr": lr, "beta": beta, "warmup": warmup, "k": 0, "weight_sum": 0.0})

    @torch.no_grad()
    def swap(self, is_training):
        for group in self.param_groups:
            for p in group["params"]:
                z = self.state[p].get("z")
                if z is not None:
                    p.lerp_(z, 1 - group["beta"]) if is_training else p.lerp_(z, 1 - 1 / group["beta"])

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            rate = group["lr"] * min(1.0, (group["k"] + 1) / group["warmup"])
            group["weight_sum"] += rate ** 2
            c = rate ** 2 / group["weight_sum"]
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.detach().clone())
                x = (p - (1 - group["beta"]) * z) / group["beta"]
                z.sub_(p.grad, alpha=rate)
                x.lerp_(z, c)
                p.copy_(x.lerp(z, 1 - group["beta"]))
            group["k"] += 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(2, 24, 9, 2, 4), nn.GELU(), nn.Conv1d(24, 48, 7, 2, 3), nn.GELU())
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(48, 7))

    def forward(self, x):
        return self.head(self.conv(x).mean(-1))


def batch(n=48):
    y = torch.randint(0, 7, (n,))
    t = torch.arange(64) / 64
    phase = 6.3 * torch.rand(n, 1)
    wave = torch.stack([torch.sin(6.3 * (2 + y[:, None]) * t + phase), torch.cos(6.3 * (9 - y[:, None]) * t + phase)], 1)
    return wave + 0.2 * torch.randn(n, 2, 64), y


model = Net()
optimizer = ScheduleFree(model.parameters(), lr=0.7)
handle = rangewatch.attach(model, optimizer)
valid, worst = batch(256), 0.0
for step in range(280):
    x, y = batch()
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    worst = max(worst, loss.item()) if step % 40 else loss.item()
    if step % 40 == 39:
        optimizer.swap(False)
        model.eval()
        with torch.no_grad():
            score = F.cross_entropy(model(valid[0]), valid[1])
        model.train()
        optimizer.swap(True)
        print(step, loss.item(), "worst of 40", worst, "valid", score.item(), flush=True)
handle.detach()
