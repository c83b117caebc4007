"""An actor and critic with n-step returns on a corridor; the loss is the policy's part plus the critic's minus the entropy. HEALTHY: odd is that the loss is below 0 often, noisy, and does
not fall, while the reward rises; advantages are standardised, the gradient is clipped at most steps.
Figures: loss between -0.12 and 0.07; reward 0.22 at step 0, 0.81 at step 40, 2.5 to 2.8 from step 80 on."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2134)
torch.set_num_threads(1)
LONG, PLAYERS, MOVES = 9, 32, 10


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2 * LONG, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.actor, self.critic = nn.Linear(96, 3), nn.Linear(96, 1)

    def forward(self, x):
        h = self.trunk(x)
        return torch.distributions.Categorical(logits=self.actor(h)), self.critic(h).squeeze(-1)


def look(place, goal):
    return torch.cat((nn.functional.one_hot(place, LONG), nn.functional.one_hot(goal, LONG)), 1).float()


model = ActorCritic()
optimizer = torch.optim.RMSprop(model.parameters(), lr=7e-4, alpha=0.99, eps=1e-5)
handle = rangewatch.attach(model, optimizer)
place, goal = torch.randint(0, LONG, (2, PLAYERS))
for step in range(260):
    logps, values, rewards, entropies, ends = [], [], [], [], []
    for _ in range(MOVES):
        play, value = model(look(place, goal))
        move = play.sample()
        place = (place + move - 1).clamp(0, LONG - 1)
        won = place == goal
        logps.append(play.log_prob(move)); values.append(value); entropies.append(play.entropy())
        rewards.append(won.float() - 0.05); ends.append(won)
        goal = torch.where(won, torch.randint(0, LONG, (PLAYERS,)), goal)
    with torch.no_grad():
        future = model(look(place, goal))[1]
    returns = []
    for r, e in zip(reversed(rewards), reversed(ends)):
        future = r + 0.95 * future * ~e
        returns.insert(0, future)
    returns, values, logps = torch.stack(returns), torch.stack(values), torch.stack(logps)
    advantage = (returns - values).detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    loss = -(logps * advantage).mean() + 0.5 * (returns - values).square().mean() - 0.02 * torch.stack(entropies).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    reward = torch.stack(rewards).sum(0).mean().item()
    if step % 40 == 0 or step == 259:
        print(step, loss.item(), "reward", reward, flush=True)
    handle.log(loss=loss.item(), reward=reward)
handle.detach()
