"""Signed distance of a two-dimensional shape by a sine network (SIREN-like), Adam, with an exponential moving average (0.995) of the weights for the evaluation every 80 steps.
FAULT at step 79: evaluate() copies the average into the network and never puts the trained weights back; training goes on from the average (at the first time still near the random start), again at 159 and 239.
Without Rangewatch: mse 0.10 to 0.0017 at 79, 0.035 at 80; 0.0017 at 159, 0.017 at 160; 0.0012 at 239, 0.008 at 240.
Cause: weight (overwritten by the average) / eval. Step: 79 or 80. Right: restore the trained weights after the evaluation, evaluate a copy. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["weight", "eval"], "step": [78, 92], "place": None, "rank": None,
          "right": r"(?i)ema|averag|restor|overwrit|copy|eval|weights? (changed|were|was)|outside|between", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import torch
import rangewatch


class Sine(torch.nn.Module):
    def __init__(self, i, o, omega=8.0):
        super().__init__()
        self.lin = torch.nn.Linear(i, o)
        self.omega = omega
        torch.nn.init.uniform_(self.lin.weight, -(6 / i) ** 0.5 / omega, (6 / i) ** 0.5 / omega)

    def forward(self, x):
        return torch.sin(self.omega * self.lin(x))


def distance(p):
    disc = (p - torch.tensor([0.3, 0.1])).norm(dim=1) - 0.35
    q = (p + torch.tensor([0.4, 0.2])).abs() - 0.25
    box = q.clamp(min=0).norm(dim=1) + q.max(1).values.clamp(max=0)
    return torch.minimum(disc, box)


class Average:
    def __init__(self, net, decay=0.995):
        self.decay, self.shadow = decay, [p.detach().clone() for p in net.parameters()]

    @torch.no_grad()
    def update(self, net):
        for s, p in zip(self.shadow, net.parameters()):
            s.lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def copy_to(self, net):
        for s, p in zip(self.shadow, net.parameters()):
            p.copy_(s)


def evaluate(net, average):
    average.copy_to(net)
    grid = torch.cartesian_prod(torch.linspace(-1, 1, 20), torch.linspace(-1, 1, 20))
    with torch.no_grad():
        return (net(grid)[:, 0] - distance(grid)).abs().mean().item()


torch.manual_seed(2)
torch.set_num_threads(1)
net = torch.nn.Sequential(Sine(2, 64), Sine(64, 64), torch.nn.Linear(64, 1))
average = Average(net)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
rangewatch.attach(net, opt)
for step in range(300):
    p = torch.rand(256, 2) * 2 - 1
    loss = (net(p)[:, 0] - distance(p)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    average.update(net)
    if step % 20 == 0 or step % 80 == 78:
        print(step, "mse", f"{loss.item():.5f}", flush=True)
    if step % 80 == 79:
        print(step, "mse", f"{loss.item():.5f}", "evaluation, mean error of the average", round(evaluate(net, average), 4), flush=True)
