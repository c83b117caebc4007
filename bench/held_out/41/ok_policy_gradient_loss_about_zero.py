"""REINFORCE with a learned baseline and an entropy bonus: a cart must be kept near the middle of a windy track (32 tracks at once, 30 moves), Adam.
HEALTHY: the printed loss jumps about zero, is often negative and never "comes down", as policy losses do (advantages are standardised); the mean return rises.
Without Rangewatch: loss +0.90 at first (the critic's), then +0.01 to -0.04; mean reward -1.36 to -0.10."""
EXPECT = {"healthy": True}
import torch
from torch import nn
from torch.distributions import Categorical
import rangewatch

torch.manual_seed(51)
torch.set_num_threads(1)
TRACKS, MOVES, GAMMA = 32, 30, 0.95


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 48), nn.Tanh())
        self.actor = nn.Linear(48, 3)
        self.critic = nn.Linear(48, 1)

    def forward(self, obs):
        h = self.trunk(obs)
        return Categorical(logits=self.actor(h)), self.critic(h).squeeze(-1)


class Windy:
    def reset(self):
        self.x = torch.randn(TRACKS)
        self.v = torch.zeros(TRACKS)
        self.wind = 0.3 * torch.randn(TRACKS)
        return torch.stack([self.x, self.v, self.wind], 1)

    def move(self, action):
        push = (action - 1).float()
        self.v = 0.8 * self.v + 0.25 * push + 0.1 * self.wind
        self.x = (self.x + self.v).clamp(-4, 4)
        self.wind = 0.95 * self.wind + 0.1 * torch.randn(TRACKS)
        return torch.stack([self.x, self.v, self.wind], 1), -(self.x.abs())


agent, env = ActorCritic(), Windy()
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-2)
handle = rangewatch.attach(agent, optimizer)
for update in range(160):
    obs, all_obs, all_actions, rewards = env.reset(), [], [], []
    with torch.no_grad():
        for _ in range(MOVES):
            action = agent.actor(agent.trunk(obs)).softmax(1).multinomial(1).squeeze(1)
            all_obs.append(obs); all_actions.append(action)
            obs, r = env.move(action)
            rewards.append(r)
    returns, acc = [], torch.zeros(TRACKS)
    for r in reversed(rewards):
        acc = r + GAMMA * acc
        returns.insert(0, acc)
    target = torch.stack(returns) / 10
    policy, value = agent(torch.stack(all_obs))
    advantage = target - value.detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss = -(policy.log_prob(torch.stack(all_actions)) * advantage).mean()
    loss = policy_loss + 0.25 * (value - target).pow(2).mean() - 0.01 * policy.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()
    handle.log(loss=loss.item())
    if update % 16 == 0 or update == 159:
        print(f"update {update} loss {loss.item():+.4f} mean reward {torch.stack(rewards).mean().item():.3f} entropy {policy.entropy().mean().item():.2f}", flush=True)
handle.detach()
