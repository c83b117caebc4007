"""A Gaussian policy that brings a cart to rest at a goal, REINFORCE with returns that a running mean and variance normalise. FAULT at step 140: with the new goal the
statistics are reset to mean 0 and variance 0 and come back slowly (0.005 a step): the first advantages are 14 times and more too large, the gradients explode
and then decay.
Without Rangewatch: norm of the gradient 0.6 to 1.8 before, 199 at step 140, 197 at 141, 29 at 142, 5 to 19 from 145 on, 2.5 at the end; the return falls from -3.5 to
-29 at step 141 and recovers to -2.4.
Cause: data, clip or forward_arithmetic (scale of the advantages). Step: 140. Right: normalis / advantage / clip / return. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data", "clip", "forward_arithmetic", "eps", "learning_rate", "(none)"], "step": [139, 148], "place": None, "rank": None,
          "right": "(?i)normali|advantage|clip|reward|return|scale|batch|data|input|learning.rate|\\blr\\b|target", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3004); torch.set_num_threads(1)


class Running:
    def __init__(self, rate):
        self.rate, self.mean, self.var = rate, 0.0, 0.0

    def start(self, r):
        self.mean, self.var = r.mean(), r.var()

    def reset(self):
        self.mean, self.var = 0.0, 0.0

    def __call__(self, r):
        self.mean = self.mean + self.rate * (r.mean() - self.mean)
        self.var = self.var + self.rate * (r.var() - self.var)
        return (r - self.mean) / (self.var ** 0.5 + 1e-6)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
        self.log_std = nn.Parameter(torch.full((1,), -0.5))

    def forward(self, s):
        return torch.distributions.Normal(self.mean(s), self.log_std.exp())


def episode(policy, goal, n=128):
    place, speed = torch.randn(n, 1), torch.zeros(n, 1)
    log_prob, cost = 0, 0
    for _ in range(12):
        act = policy(torch.cat((place, speed, torch.full((n, 1), goal)), 1))
        a = act.sample()
        log_prob = log_prob + act.log_prob(a)
        speed = 0.8 * speed + 0.3 * a
        place = place + 0.5 * speed
        cost = cost + (place - goal) ** 2 + 0.05 * a ** 2
    return log_prob[:, 0], -cost[:, 0].clamp(max=60)


policy = Policy()
optimizer = torch.optim.SGD(policy.parameters(), lr=3e-3)
handle = rangewatch.attach(policy, optimizer)
returns, goal = Running(0.005), 0.0
with torch.no_grad():
    returns.start(episode(policy, goal)[1])
for step in range(260):
    if step == 140:
        goal = 1.0
        returns.reset()
    log_prob, r = episode(policy, goal)
    loss = -(log_prob * returns(r)).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = sum(p.grad.square().sum() for p in policy.parameters()) ** 0.5
    optimizer.step()
    if step % 20 == 0 or step in (139, 140, 141, 142, 145, 150, 259):
        print(step, loss.item(), "return", r.mean().item(), "norm of gradient", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
