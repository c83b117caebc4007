"""PPO with a Gaussian policy on a toy of a cart that shall come to rest; minibatches of 64 from a roll-out, advantages normalised in each minibatch (Adam). FAULT: from step 150 on the roll-out has 193
transitions: the last minibatch holds one, `adv.std()` of one number is NaN.
Without Rangewatch: loss 3.3 to about 0.02, reward -0.31 to -0.04 at step 149; a warning of std() and loss NaN at step 153, where the script ends.
Cause: forward_arithmetic (std of one element; the roll-out's length: data). Step: 153. Right: std / normalise / batch of one. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [152, 157], "place": None, "rank": None,
          "right": "(?i)std|normali|batch|eps|divi|advantage|data", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3417); torch.set_num_threads(1)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mean, self.value = nn.Linear(64, 1), nn.Linear(64, 1)
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, s):
        h = self.body(s)
        return torch.distributions.Normal(self.mean(h)[:, 0], self.log_std.exp()), self.value(h)[:, 0]


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2e-3)


@torch.no_grad()
def rollout(n):
    s = 1.5 * torch.randn(8, 2)
    S, A, LP, R, VAL = [], [], [], [], []
    for t in range(-(-n // 8)):
        dist, v = agent(s)
        a = dist.sample()
        nxt = torch.stack([(s[:, 0] + 0.3 * s[:, 1]).clamp(-3, 3), 0.7 * s[:, 1] + 0.4 * a.clamp(-2, 2)], 1)
        r = -(nxt ** 2).sum(1) * 0.1
        for box, item in zip((S, A, LP, R, VAL), (s, a, dist.log_prob(a), r, v)):
            box.append(item)
        s = nxt
    ret, out = agent(s)[1], []
    for r in reversed(R):
        ret = r + 0.9 * ret
        out.append(ret)
    ret = torch.cat(out[::-1])
    val = torch.cat(VAL)
    return [x[:n] for x in (torch.cat(S), torch.cat(A), torch.cat(LP), ret - val, ret)], torch.stack(R).mean().item()


handle = rangewatch.attach(agent, optimizer)
step = 0
while step < 210:
    (s, a, lp, adv, ret), reward = rollout(192 if step < 150 else 193)
    for idx in torch.randperm(len(s)).split(64):
        ad = adv[idx]
        ad = (ad - ad.mean()) / (ad.std() + 1e-8)
        dist, v = agent(s[idx])
        ratio = (dist.log_prob(a[idx]) - lp[idx]).exp()
        loss = -torch.min(ratio * ad, ratio.clamp(0.8, 1.2) * ad).mean() + 0.5 * (v - ret[idx]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 < 3 or 148 < step < 156:
            print(step, loss.item(), "reward", reward, len(idx), flush=True)
        handle.log(loss=loss.item())
        step += 1
    if torch.isnan(agent.log_std).any():
        break
handle.detach()
