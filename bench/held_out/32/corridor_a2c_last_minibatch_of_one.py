"""An actor-critic walks a corridor of nine cells to the end that a sign tells; whole episodes are gathered (some 100 moves each iteration) and learned in minibatches of 64, advantages normalised in each minibatch. FAULT at step 85: that iteration's moves leave a last minibatch of
one: its std (unbiased, of one sample) is NaN.
Without Rangewatch: score -0.10 to 0.86; step 85 has 129 moves, loss NaN (the script ends there, 86 steps).
Cause: forward_arithmetic (std of one sample). Step: 85. Right: std / one sample / drop the last batch. Wrong: learning rate, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [84, 89], "place": None, "rank": None,
          "right": "(?i)std|deviation|variance|one (sample|element|row)|single|normali|batch|divi|advantage", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(419); torch.set_num_threads(1)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(11, 48), nn.Tanh())
        self.pi, self.v = nn.Linear(48, 2), nn.Linear(48, 1)

    def forward(self, s):
        h = self.trunk(s)
        return self.pi(h), self.v(h).squeeze(1)


def gather(net, episodes=16):
    pos, sign = torch.randint(2, 7, (episodes,)), torch.randint(0, 2, (episodes,))
    alive, S, A, R, M = torch.ones(episodes, dtype=torch.bool), [], [], [], []
    for _ in range(24):
        s = torch.cat([F.one_hot(pos, 9), F.one_hot(sign, 2)], 1).float()
        with torch.no_grad():
            a = torch.distributions.Categorical(logits=net(s)[0]).sample()
        S.append(s); A.append(a); M.append(alive.clone())
        move = torch.where(torch.rand(episodes) < 0.2, 1 - a, a)    # the floor is slippery
        pos = torch.where(alive, (pos + 2 * move - 1).clamp(0, 8), pos)
        end = alive & ((pos == 0) | (pos == 8))
        R.append(torch.where(end, torch.where((pos == 8) == (sign == 1), 1.0, -1.0), -0.02) * alive)
        alive = alive & ~end
        if not alive.any():
            break
    ret, G = [], torch.zeros(episodes)
    for r in reversed(R):
        G = r + 0.95 * G
        ret.insert(0, G)
    m = torch.stack(M)
    return torch.stack(S)[m], torch.stack(A)[m], torch.stack(ret)[m], torch.stack(R).sum(0).mean()


net = ActorCritic()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(230):
    s, a, ret, score = gather(net)
    order, total = torch.randperm(len(s)), 0.0
    for part in order.split(64):
        logits, v = net(s[part])
        adv = ret[part] - v.detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        logp = F.log_softmax(logits, 1)
        policy = -(adv * logp.gather(1, a[part, None]).squeeze(1)).mean()
        loss = policy + 0.5 * F.mse_loss(v, ret[part]) + 0.01 * (logp.exp() * logp).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(part) / len(s)
    if step % 20 == 0 or len(s) % 64 == 1:
        print(step, total, "score", score.item(), "moves", len(s), flush=True)
    handle.log(loss=total, score=score.item())
    if total != total:
        print("NaN at step", step)
        break
handle.detach()
