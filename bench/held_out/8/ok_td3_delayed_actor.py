"""TD3 on a noisy pendulum-like system: two critics, targets moved by Polyak, the actor is updated at every second step only, a replay buffer;
rewards are noisy and now and then -10 for a fall. The critics' loss goes up as values grow, with spikes, and comes down again. HEALTHY.
Without Rangewatch: loss 1.9, 31 at step 20, 9 at step 140, 0.6 at the end; reward -3 to 0.8 at first, about 0.9 at the end."""
EXPECT = {"healthy": True}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(833); torch.set_num_threads(1)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 1), nn.Tanh())
        self.q1 = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
        self.q2 = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))


def act(state, action):
    angle, speed = state[:, 0], state[:, 1]
    speed = 0.95 * speed + 0.15 * torch.sin(angle) + 0.4 * action[:, 0] + 0.02 * torch.randn(len(state))
    angle = angle + 0.2 * speed
    fell = angle.abs() > 1.2
    reward = 1 - angle ** 2 + 0.5 * torch.randn(len(state)) - 10.0 * fell
    fresh = 0.2 * torch.randn(len(state), 2)
    after = torch.where(fell[:, None], fresh, torch.stack([angle, speed], 1))
    return torch.cat([after, torch.cos(after[:, :1])], 1), reward, fell.float()


agent = Agent()
target = copy.deepcopy(agent)
actor_step = torch.optim.Adam(agent.actor.parameters(), lr=2e-3)
critic_step = torch.optim.Adam([*agent.q1.parameters(), *agent.q2.parameters()], lr=3e-3)
handle = rangewatch.attach(agent, [critic_step, actor_step])
state = torch.cat([0.2 * torch.randn(16, 2), torch.ones(16, 1)], 1)
buffer = []
for step in range(380):
    with torch.no_grad():
        action = (agent.actor(state) + 0.2 * torch.randn(16, 1)).clamp(-1, 1)
        after, reward, fell = act(state, action)
    buffer.append((state, action, reward, after, fell))
    state = after
    s, a, r, n, f = (torch.cat(t) for t in zip(*(buffer[i] for i in torch.randint(0, len(buffer), (6,)).tolist())))
    with torch.no_grad():
        na = (target.actor(n) + (0.2 * torch.randn(len(n), 1)).clamp(-0.5, 0.5)).clamp(-1, 1)
        y = r + 0.97 * (1 - f) * torch.min(target.q1(torch.cat([n, na], 1)), target.q2(torch.cat([n, na], 1))).squeeze(1)
    loss = F.mse_loss(agent.q1(torch.cat([s, a], 1)).squeeze(1), y) + F.mse_loss(agent.q2(torch.cat([s, a], 1)).squeeze(1), y)
    critic_step.zero_grad()
    loss.backward()
    critic_step.step()
    if step % 2 == 1:
        gain = -agent.q1(torch.cat([s, agent.actor(s)], 1)).mean()
        actor_step.zero_grad()
        gain.backward()
        actor_step.step()
        with torch.no_grad():
            for p, q in zip(target.parameters(), agent.parameters()):
                p.lerp_(q, 0.02)
    handle.log(loss=loss.item(), reward=reward.mean().item())
    if step % 20 == 0:
        print(step, loss.item(), "value", y.mean().item(), "reward", reward.mean().item(), flush=True)
handle.detach()
