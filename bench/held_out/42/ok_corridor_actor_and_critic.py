"""A walker in a windy corridor learns to reach the door: REINFORCE with a value baseline and an entropy bonus, actor and critic apart, two optimizers (Adam and RMSprop).
HEALTHY: the actor's loss hovers around zero and says nothing (advantages are normalised, signs change), the critic's rises for a while because returns become larger; the mean return rises. No more is to be expected of such losses.
Without Rangewatch: actor's loss between -0.16 and 0.02, critic's 0.02, 0.16 at 40, 0.002 at the end; return -0.35 to 0.58 (the best is some 0.6); entropy 1.08 to 0.02, as the way is always to the right."""
EXPECT = {"healthy": True}
import torch
from torch import nn
from torch.distributions import Categorical
import rangewatch

torch.manual_seed(44)
torch.set_num_threads(1)
LENGTH, HORIZON, WALKERS = 10, 24, 24


def observe(pos, wind):
    return torch.stack([pos.float() / LENGTH, wind.float(), (pos == LENGTH - 1).float()], 1)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 3))
        self.critic = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))


def rollout(agent):
    pos, wind = torch.zeros(WALKERS, dtype=torch.long), torch.randint(-1, 2, (WALKERS,))
    obs, acts, rewards, alive = [], [], [], []
    going = torch.ones(WALKERS)
    for _ in range(HORIZON):
        o = observe(pos, wind)
        with torch.no_grad():
            a = Categorical(logits=agent.actor(o)).sample()
        gust = (torch.rand(WALKERS) < 0.3).long() * wind
        pos = (pos + (a - 1) + gust).clamp(0, LENGTH)
        done = pos == LENGTH
        obs.append(o); acts.append(a); alive.append(going)
        rewards.append(going * (done.float() - 0.02))
        going = going * (~done).float()
        wind = torch.randint(-1, 2, (WALKERS,))
    returns, g = [], torch.zeros(WALKERS)
    for r in reversed(rewards):
        g = r + 0.97 * g
        returns.insert(0, g)
    return map(torch.stack, (obs, acts, returns, alive))


agent = Agent()
opt_actor = torch.optim.Adam(agent.actor.parameters(), lr=3e-3)
opt_critic = torch.optim.RMSprop(agent.critic.parameters(), lr=3e-3)
handle = rangewatch.attach(agent, [opt_actor, opt_critic])
for it in range(180):
    obs, acts, returns, alive = rollout(agent)
    keep = alive.flatten() > 0
    obs, acts, ret = obs.flatten(0, 1)[keep], acts.flatten()[keep], returns.flatten()[keep]
    value = agent.critic(obs)[:, 0]
    critic_loss = (value - ret).square().mean()
    opt_critic.zero_grad()
    critic_loss.backward()
    opt_critic.step()
    advantage = ret - value.detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    pi = Categorical(logits=agent.actor(obs))
    actor_loss = -(pi.log_prob(acts) * advantage).mean() - 0.05 * pi.entropy().mean()
    opt_actor.zero_grad()
    actor_loss.backward()
    opt_actor.step()
    handle.log(actor_loss=actor_loss.item(), critic_loss=critic_loss.item())
    if it % 20 == 0 or it == 179:
        print(f"step {it} actor {actor_loss.item():+.4f} critic {critic_loss.item():.4f} return {returns[0].mean().item():.3f} entropy {pi.entropy().mean().item():.2f}", flush=True)
handle.detach()
