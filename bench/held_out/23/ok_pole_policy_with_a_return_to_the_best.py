"""HEALTHY: an actor-critic that balances a pole (a small simulation), with an entropy bonus, gradients accumulated over four groups of episodes, and the best
weights loaded back at step 120 on purpose (optimizer, too). Odd to a watcher: a loss that rises while the reward does, too, weights that jump once.
Without Rangewatch: the reward (share of the time upright) rises from 0.21 to 0.82, the loss from 0.52 at step 20 to 1.24 at step 60, 0.67 at
the end."""
EXPECT = {"healthy": True}
import copy
import torch
from torch import nn
import rangewatch

torch.manual_seed(2348); torch.set_num_threads(1)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 64), nn.Tanh())
        self.act, self.value = nn.Linear(64, 3), nn.Linear(64, 1)

    def forward(self, s):
        h = self.body(s)
        return self.act(h).log_softmax(-1), self.value(h)[..., 0]


model = ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
best, kept = -1.0, None
for step in range(200):
    if step == 120:
        model.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[1])
    optimizer.zero_grad()
    total, reward_sum = 0.0, 0.0
    for _ in range(4):
        s = 0.3 * torch.randn(24, 2)
        log_ps, values, rewards, entropy = [], [], [], 0.0
        for _ in range(12):
            log_p, value = model(s)
            a = torch.multinomial(log_p.detach().exp(), 1)
            log_ps.append(log_p.gather(1, a)[:, 0])
            values.append(value)
            entropy = entropy - (log_p.exp() * log_p).sum(1).mean() / 12
            fall = s[:, 1] + 0.15 * s[:, 0] + 0.12 * (a[:, 0] - 1)
            s = torch.stack((s[:, 0] + 0.5 * fall, fall), 1).clamp(-2, 2)
            rewards.append((s[:, 0].abs() < 0.3).float())
        back, returns = torch.zeros(24), []
        for r in reversed(rewards):
            back = r + 0.8 * back
            returns.insert(0, back)
        returns, values = torch.stack(returns), torch.stack(values)
        advantage = returns - values.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        loss = -(advantage * torch.stack(log_ps)).mean() + 0.5 * (returns - values).square().mean() - 0.01 * entropy
        (loss / 4).backward()
        total += loss.item() / 4
        reward_sum += torch.stack(rewards).mean().item() / 4
    optimizer.step()
    if reward_sum > best:
        best, kept = reward_sum, (copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()))
    if step % 20 == 0 or step == 199:
        print(step, total, "reward", reward_sum, flush=True)
    handle.log(loss=total, reward=reward_sum)
handle.detach()
