"""PPO with its clipped ratio, three passes over each batch, a value net and an entropy bonus, on a lake of 5 x 5 cells whose goal is drawn anew. HEALTHY: the loss is about 0,
below it at times and does not fall, gradients come and go with the advantages; the return rises.
Without Rangewatch: return -0.88 to 2.1; loss 0.29 to 0.02."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2447); torch.set_num_threads(1)
MOVES = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])


class Skater(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.act, self.value = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, s):
        h = self.body(s)
        return self.act(h).log_softmax(-1), self.value(h)[..., 0]


def see(at, goal):
    return F.one_hot(torch.cat((at, goal), 1), 5).float().flatten(1)


agent = Skater()
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3)
handle = rangewatch.attach(agent, optimizer)
step = 0
while step < 240:
    at, goal = torch.randint(0, 5, (2, 64, 2))
    states, actions, old, rewards = [], [], [], []
    with torch.no_grad():
        for _ in range(8):
            s = see(at, goal)
            log_p, _ = agent(s)
            a = torch.multinomial(log_p.exp(), 1)
            before = (at - goal).abs().sum(1)
            at = (at + MOVES[a[:, 0]]).clamp(0, 4)
            after = (at - goal).abs().sum(1)
            rewards.append((before - after).float() - 0.1)
            states.append(s); actions.append(a); old.append(log_p.gather(1, a)[:, 0])
    states, actions, old, rewards = (torch.stack(v) for v in (states, actions, old, rewards))
    returns, running = [], torch.zeros(64)
    for r in rewards.flip(0):
        running = r + 0.9 * running
        returns.insert(0, running)
    returns = torch.stack(returns)
    with torch.no_grad():
        advantage = returns - agent(states)[1]
        advantage = (advantage - advantage.mean()) / advantage.std()
    for _ in range(3):
        log_p, value = agent(states)
        ratio = (log_p.gather(2, actions)[..., 0] - old).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss = -gain + 0.2 * F.mse_loss(value, returns) + 0.02 * (log_p.exp() * log_p).sum(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        if step % 20 == 0 or step == 239:
            print(step, loss.item(), "return", rewards.sum(0).mean().item(), flush=True)
        handle.log(loss=loss.item(), episode_return=rewards.sum(0).mean().item())
        step += 1
handle.detach()
