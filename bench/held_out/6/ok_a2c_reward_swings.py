"""Advantage actor-critic on a cart with a pole, 16 at a time, RMSprop, clipped at 0.5. The loss is mostly that of the value, which goes up
when the agent gets better and when several poles fall at once. HEALTHY. Without Rangewatch: length 20 to 161; loss 8.8, 1.5 at step 240, 35 at step 280
and 18 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(629); torch.set_num_threads(1)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 48), nn.Tanh())
        self.policy, self.value = nn.Linear(48, 2), nn.Linear(48, 1)

    def forward(self, s):
        h = self.body(s)
        return self.policy(h), self.value(h)[..., 0]


def push(s, a):
    """A cart with a pole, as in the textbook."""
    x, v, angle, w = s.unbind(-1)
    force = 10.0 * (2 * a.float() - 1)
    temp = (force + 0.05 * w ** 2 * angle.sin()) / 1.1
    acc = (9.8 * angle.sin() - angle.cos() * temp) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
    return torch.stack([x + 0.02 * v, v + 0.02 * (temp - 0.05 * acc * angle.cos() / 1.1), angle + 0.02 * w, w + 0.02 * acc], -1)


model = ActorCritic()
optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3, alpha=0.99, eps=1e-5)
handle = rangewatch.attach(model, optimizer)
state, age, ended = 0.05 * torch.randn(16, 4), torch.zeros(16), [20.0]
for step in range(300):
    logs, values, rewards, dones, entropies = [], [], [], [], []
    for _ in range(8):
        logits, value = model(state)
        policy = torch.distributions.Categorical(logits=logits)
        action = policy.sample()
        state = push(state, action)
        age += 1
        done = (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 0.21) | (age >= 200)
        ended += age[done].tolist()
        logs.append(policy.log_prob(action)), values.append(value), entropies.append(policy.entropy())
        rewards.append(torch.where(done & (age < 200), -5.0, 1.0)), dones.append(done.float())
        state = torch.where(done[:, None], 0.05 * torch.randn(16, 4), state)
        age = torch.where(done, torch.zeros(()), age)
    with torch.no_grad():
        back = model(state)[1]
    returns = []
    for r, d in zip(reversed(rewards), reversed(dones)):
        back = r + 0.98 * back * (1 - d)
        returns.insert(0, back)
    gain, value = torch.stack(returns), torch.stack(values)
    loss = -(torch.stack(logs) * (gain - value.detach())).mean() + 0.25 * F.mse_loss(value, gain) - 0.01 * torch.stack(entropies).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    if step % 20 == 0 or step == 299:
        print(step, loss.item(), "length", sum(ended[-20:]) / len(ended[-20:]), flush=True)
handle.detach()
