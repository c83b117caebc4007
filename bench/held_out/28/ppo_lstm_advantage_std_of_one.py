"""PPO with an LSTM policy in a small memory game (say at the end which cue was seen first). The rollouts are cut to the finished episodes and split into minibatches of 16.
FAULT: the advantages are normalised within each minibatch by `adv.std()`; at update 52 only 33 episodes have finished, the last minibatch holds one, the std of one value is NaN.
Without Rangewatch: reward 0.32 to 1.0; loss NaN and weights NaN at step 158, the last (the script ends there).
Cause: forward_arithmetic (data). Step: 158. Right: std / normalise / division / minibatch. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [157, 160], "place": None, "rank": None,
          "right": "(?i)std|normali[sz]|divi|eps|minibatch|batch|advantage|variance|input|loss", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(63); torch.set_num_threads(1)
LEN, CUES = 8, 3


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(CUES + 1, 48, batch_first=True)
        self.policy, self.value = nn.Linear(48, CUES), nn.Linear(48, 1)

    def forward(self, obs):
        h = self.lstm(obs)[0][:, -1]
        return torch.distributions.Categorical(logits=self.policy(h)), self.value(h)[:, 0]


def play(agent, n):
    cue = torch.randint(0, CUES, (n,))
    obs = torch.cat((torch.zeros(n, LEN, CUES), 0.5 * torch.randn(n, LEN, 1)), 2)
    obs[torch.arange(n), 0, cue] = 1.0
    with torch.no_grad():
        dist, value = agent(obs)
        action = dist.sample()
    reward = (action == cue).float()
    return obs, action, dist.log_prob(action), reward, reward - value


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3, eps=1e-5)
handle = rangewatch.attach(agent, optimizer)
step = 0
finished = torch.randint(36, 48, (60,))
finished[52] = 33
for update in range(60):
    obs, action, old, ret, adv = play(agent, int(finished[update]))
    for idx in torch.randperm(len(obs)).split(16):
        a = (adv[idx] - adv[idx].mean()) / (adv[idx].std() + 1e-8)
        dist, value = agent(obs[idx])
        ratio = (dist.log_prob(action[idx]) - old[idx]).exp()
        pg = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
        loss = pg + 0.5 * (value - ret[idx]).pow(2).mean() - 0.01 * dist.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        handle.log(loss=loss.item())
        step += 1
    if update % 6 == 0 or update > 50:
        print(update, step, loss.item(), "reward", ret.mean().item(), flush=True)
    if not torch.isfinite(agent.policy.weight).all():
        print("weights not finite after step", step - 1)
        break
handle.detach()
