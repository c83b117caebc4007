"""Actor and critic for a ferry that is driven by wind and must reach its pier (RMSprop, one loss of policy, value and entropy). HEALTHY: the loss swings and
goes UP as the returns grow; it is the reward that tells that it learns.
Without Rangewatch: loss 0.78 to between 1.2 and 1.9; the mean reward of a move 0.014 to 0.64."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2737); torch.set_num_threads(1)
BOATS, HORIZON = 32, 8


class Ferry(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 64), nn.Tanh())
        self.helm, self.worth = nn.Linear(64, 3), nn.Linear(64, 1)

    def forward(self, s):
        h = self.trunk(s)
        return torch.distributions.Categorical(logits=self.helm(h)), self.worth(h)[:, 0]


def start(n):
    return torch.cat((2 * torch.rand(n, 1) - 1, 0.5 * torch.randn(n, 1), 2 * torch.rand(n, 1) - 1), 1)


def sail(s, action):
    place, wind, pier = s.unbind(1)
    place = (place + 0.3 * (action - 1) + 0.15 * wind + 0.05 * torch.randn(len(s))).clamp(-2, 2)
    reward = ((place - pier).abs() < 0.2).float()
    fresh = torch.rand(len(s)) < 0.1
    return torch.where(fresh[:, None], start(len(s)), torch.stack((place, wind, pier), 1)), reward, fresh


net = Ferry()
optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
s, mean = start(BOATS), 0.0
for step in range(260):
    logp, value, reward, over, entropy = [], [], [], [], []
    for _ in range(HORIZON):
        policy, v = net(s)
        a = policy.sample()
        logp.append(policy.log_prob(a)); value.append(v); entropy.append(policy.entropy())
        s, r, fresh = sail(s, a)
        reward.append(r); over.append(fresh)
    with torch.no_grad():
        ret, rets = net(s)[1], []
        for r, fresh in zip(reversed(reward), reversed(over)):
            ret = r + 0.9 * ret * ~fresh
            rets.append(ret)
        rets = torch.stack(rets[::-1])
    value, logp = torch.stack(value), torch.stack(logp)
    gain = rets - value
    loss = -(logp * gain.detach()).mean() + 0.5 * gain.pow(2).mean() - 0.02 * torch.stack(entropy).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
    mean = 0.9 * mean + 0.1 * torch.stack(reward).mean().item()
    if step % 20 == 0 or step == 259:
        print(step, loss.item(), "reward", mean, flush=True)
    handle.log(loss=loss.item())
handle.detach()
