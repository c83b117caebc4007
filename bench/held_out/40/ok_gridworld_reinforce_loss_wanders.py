"""RL: REINFORCE with a mean baseline and an entropy bonus on a 5 x 5 grid with a hole (policy MLP, Adam).
HEALTHY: the "loss" of a policy gradient is no measure of anything: it stays small and below or about zero from first to last and does not come down. The return climbs.
Without Rangewatch: loss -0.01 to -0.12 and back to -0.01, return -0.43 to +0.75."""
EXPECT = {"healthy": True}
import torch
from torch import nn
from torch.distributions import Categorical
import rangewatch

torch.manual_seed(10); torch.set_num_threads(1)
SIDE, WALKERS, HORIZON = 5, 48, 12
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
GOAL, HOLE = torch.tensor([4, 4]), torch.tensor([2, 2])


def see(pos):
    return torch.cat([nn.functional.one_hot(pos[:, 0], SIDE), nn.functional.one_hot(pos[:, 1], SIDE)], 1).float()


policy = nn.Sequential(nn.Linear(2 * SIDE, 64), nn.Tanh(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
handle = rangewatch.attach(policy, optimizer)
for it in range(200):
    pos = torch.randint(0, 3, (WALKERS, 2))
    alive = torch.ones(WALKERS)
    obs, acts, live, rewards = [], [], [], []
    with torch.no_grad():
        for t in range(HORIZON):
            o = see(pos)
            a = Categorical(logits=policy(o)).sample()
            obs.append(o); acts.append(a); live.append(alive.clone())
            pos = torch.where(alive[:, None] > 0, (pos + MOVES[a]).clamp(0, SIDE - 1), pos)
            won, lost = (pos == GOAL).all(1), (pos == HOLE).all(1)
            rewards.append(alive * (1.0 * won - 1.0 * lost - 0.02))
            alive = alive * (~(won | lost)).float()
    togo = torch.zeros(WALKERS)
    returns = []
    for r in reversed(rewards):
        togo = r + 0.97 * togo
        returns.append(togo)
    returns = torch.stack(returns[::-1])
    live = torch.stack(live)
    advantage = returns - (returns * live).sum() / live.sum()
    dist = Categorical(logits=policy(torch.cat(obs)))
    logp = dist.log_prob(torch.cat(acts)).view(HORIZON, WALKERS)
    entropy = dist.entropy().view(HORIZON, WALKERS)
    loss = -((logp * advantage + 0.01 * entropy) * live).sum() / live.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if it % 20 == 0 or it == 199:
        print(f"iteration {it} loss {loss.item():+.4f} return {returns[0].mean().item():+.3f}", flush=True)
handle.detach()
