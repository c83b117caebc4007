"""An actor-critic in a corridor of 9 cells with a goal at one end and a pit at the other; a sign tells which. FAULT from the start: the learning rate of Adam is 3 (3e-3 was meant):
after the first steps the policy is certain of one action, and the critic's values are in the thousands.
Without Rangewatch: loss 0.18 at step 0, 144 at 1, 1779 at 2, 0.07 at the end; entropy 0.49 to 0.0; reward about -0.1 to the end. With 3e-3 the reward is
0.90 from step 20.
Cause: learning_rate, dead_units or no_gradient. Step: any. Right: learning rate. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate", "dead_units", "no_gradient"], "step": [0, 60], "place": None, "rank": None,
          "right": "(?i)learning rate|\\blr\\b|step size", "wrong": ["GradScaler", "attention mask", "all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical
import rangewatch

torch.manual_seed(6108); torch.set_num_threads(1)
CELLS, HORIZON, GAMMA = 9, 14, 0.95


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(CELLS + 1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.actor, self.critic = nn.Linear(48, 2), nn.Linear(48, 1)

    def forward(self, s, sign):
        h = self.trunk(torch.cat((F.one_hot(s, CELLS).float(), sign[:, None]), 1))
        return Categorical(logits=self.actor(h)), self.critic(h)[:, 0]


net = ActorCritic()
optimizer = torch.optim.Adam(net.parameters(), lr=3)
handle = rangewatch.attach(net, optimizer)
for step in range(160):
    place, alive, sign = torch.randint(2, 7, (24,)), torch.ones(24), 2.0 * torch.randint(0, 2, (24,)) - 1
    logs, values, rewards, lives, entropy = [], [], [], [], 0.0
    for _ in range(HORIZON):
        pi, v = net(place, sign)
        a = pi.sample()
        slip = torch.rand(24) < 0.1
        place = (place + torch.where(slip, 1 - 2 * a, 2 * a - 1)).clamp(0, CELLS - 1)
        reward = alive * (sign * ((place == CELLS - 1).float() - (place == 0).float()) - 0.02)
        logs.append(pi.log_prob(a)); values.append(v); rewards.append(reward); lives.append(alive)
        entropy = entropy + (pi.entropy() * alive).mean() / HORIZON
        alive = alive * ((place > 0) & (place < CELLS - 1)).float()
    back, returns = torch.zeros(24), []
    for r in reversed(rewards):
        back = r + GAMMA * back
        returns.insert(0, back)
    logs, values, returns, lives = torch.stack(logs), torch.stack(values), torch.stack(returns), torch.stack(lives)
    advantage = (returns - values).detach()
    loss = (-(logs * advantage * lives).sum() + 0.5 * ((values - returns) ** 2 * lives).sum()) / lives.sum() - 0.01 * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (1, 2, 5, 159):
        print(step, loss.item(), "reward", torch.stack(rewards).sum(0).mean().item(), "entropy", entropy.item(), "value", values.abs().max().item(), flush=True)
    handle.log(loss=loss.item(), reward=torch.stack(rewards).sum(0).mean().item())
handle.detach()
