"""HEALTHY: an actor and critic (A2C) hold a pole upright on a cart, 32 carts at once, eight steps of the world to each step of Adam. The loss goes through 0 and below, it rises while
the critic learns of longer lives, and the gradients are uneven; the mean length of a life rises.
Without Rangewatch: the mean life rises from 8 to some 200 steps of 300 at step 75 and 150 to 220 from there on; the loss is 0.36 to -0.007.
Nothing is wrong."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2248); torch.set_num_threads(1)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def push(s, a):
    x, v, th, w = s.T
    force = 20.0 * a - 10.0
    t = (force + 0.05 * w ** 2 * th.sin()) / 1.1
    acc = (9.8 * th.sin() - th.cos() * t) / (0.5 * (4 / 3 - 0.1 * th.cos() ** 2 / 1.1))
    s = torch.stack((x + 0.02 * v, v + 0.02 * (t - 0.05 * acc * th.cos() / 1.1), th + 0.02 * w, w + 0.02 * acc), 1)
    return s, (s[:, 0].abs() > 2.4) | (s[:, 2].abs() > 0.21)


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3)
handle = rangewatch.attach(agent, optimizer)
state, age, lives = 0.1 * torch.rand(32, 4) - 0.05, torch.zeros(32), []
for step in range(250):
    logp, values, ends, entropy = [], [], [], []
    for _ in range(8):
        d = torch.distributions.Categorical(logits=agent.actor(state))
        a = d.sample()
        logp.append(d.log_prob(a))
        entropy.append(d.entropy().mean())
        values.append(agent.critic(state)[:, 0])
        state, end = push(state, a.float())
        age += 1
        end = end | (age >= 300)
        lives += age[end].tolist()
        age[end] = 0
        state = torch.where(end[:, None], 0.1 * torch.rand(32, 4) - 0.05, state)
        ends.append(end)
    ret, returns = agent.critic(state)[:, 0].detach(), []
    for end in reversed(ends):
        ret = 0.1 + 0.97 * ret * ~end
        returns.insert(0, ret)
    gain = torch.stack(returns) - torch.stack(values)
    loss = -(torch.stack(logp) * gain.detach()).mean() + 0.5 * gain.square().mean() - 0.01 * torch.stack(entropy).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()
    handle.log(loss=loss.item(), life=sum(lives[-50:]) / max(1, len(lives[-50:])))
    if step % 25 == 0 or step == 249:
        print(step, loss.item(), "mean of the last 50 lives", sum(lives[-50:]) / max(1, len(lives[-50:])), flush=True)
handle.detach()
