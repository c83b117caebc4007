"""A2C on a small cart that is to stand at a mark, 48 carts at once. FAULT at step 110: the simulator's contact solver blows up for two carts and hands out
a reward of -600 for one tick; nothing clips it: the critic's loss jumps by many orders and the policy is thrown away.
Without Rangewatch: loss -0.003 at step 109 (reward -0.034 a tick), 2529 at step 110, 0.27 and 0.34 at 111 and 112, 0.12 at step 120, 0.008 at the end.
Cause: data (the reward), clip (none), learning_rate. Step: 110. Right: reward / outlier / clip. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data", "clip", "(none)"], "step": [109, 114], "place": None, "rank": None,
          "right": "(?i)reward|outlier|clip|batch|spike|data|return", "wrong": ["GradScaler", "attention mask", "all_?reduce"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2907); torch.set_num_threads(1)


class Carts:
    def __init__(self, n):
        self.n, self.ticks = n, 0
        self.pos, self.vel = 2 * torch.randn(n), torch.zeros(n)

    def obs(self):
        return torch.stack((self.pos, self.vel), 1)

    def step(self, a):
        self.vel = 0.8 * self.vel + 0.3 * a.clamp(-1, 1)
        self.pos = (self.pos + self.vel).clamp(-5, 5)
        reward = -0.1 * self.pos.abs() - 0.02 * a.pow(2)
        self.ticks += 1
        if self.ticks == 110 * 12 + 7:
            reward[:2] -= 600.0
        again = torch.rand(self.n) < 0.02
        self.pos = torch.where(again, 2 * torch.randn(self.n), self.pos)
        return reward


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mu, self.value = nn.Linear(64, 1), nn.Linear(64, 1)
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, o):
        h = self.trunk(o)
        return torch.distributions.Normal(self.mu(h)[:, 0], self.log_std.clamp(-3, 1).exp()), self.value(h)[:, 0]


carts, net = Carts(48), ActorCritic()
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    logps, values, rewards, ents = [], [], [], []
    for _ in range(12):
        dist, v = net(carts.obs())
        a = dist.sample()
        logps.append(dist.log_prob(a)); values.append(v); ents.append(dist.entropy().mean())
        rewards.append(carts.step(a))
    with torch.no_grad():
        ret = net(carts.obs())[1]
    returns = []
    for r in reversed(rewards):
        ret = r + 0.9 * ret
        returns.insert(0, ret)
    returns, values, logps = torch.stack(returns), torch.stack(values), torch.stack(logps)
    adv = (returns - values).detach()
    loss = -(logps * adv).mean() + 0.5 * (returns - values).pow(2).mean() - 0.003 * torch.stack(ents).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (109, 110, 111, 112, 199):
        print(step, loss.item(), "reward", torch.stack(rewards).mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
