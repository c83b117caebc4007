"""A critic that learns the value of states of a random walk by TD(0) with a slow target. Rewards are divided by a running scale. FAULT at step 112: the environment is made
anew, and the running scale with it; it starts at 1e-4 where the true one is 0.7: the rewards are a hundred times too great at first, the gradients explode and
decay as the scale and the critic catch up.
Without Rangewatch: loss 0.84 at step 111, 3390 at 112, 31 at 113, 10 at 120, 1.3 at the end; gradient 2.2, 344, 27, 34, 2.0.
Cause: data (the rewards), forward_arithmetic, or none named; clip (there is none) is fair too. Step: 112. Right: reward / data / scale / clip. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data", "clip", "(none)", "forward_arithmetic"], "step": [111, 120], "place": None, "rank": None,
          "right": "(?i)reward|data|batch|target|input|scale|unit|clip", "wrong": ["GradScaler", "attention mask", "all_reduce"]}
import copy
import torch
from torch import nn
import rangewatch

torch.manual_seed(6111); torch.set_num_threads(1)


class Scale:
    def __init__(self, start=1e-4, keep=0.97):
        self.var, self.keep = start, keep

    def __call__(self, r):
        out = r / self.var ** 0.5
        self.var = self.keep * self.var + (1 - self.keep) * r.square().mean().item()
        return out


class Walk:
    def __init__(self, start):
        self.scale = Scale(start)

    def step(self, s):
        nxt = 0.9 * s + 0.3 * torch.randn_like(s)
        return nxt, self.scale(torch.tanh(nxt[:, 0]) + 0.5 * (nxt[:, 1] > 0).float())


critic = nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
slow = copy.deepcopy(critic).requires_grad_(False)
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
handle = rangewatch.attach(critic, optimizer)
env = Walk(start=0.7)
s = torch.randn(64, 4)
for step in range(280):
    if step == 112:
        env = Walk(start=1e-4)
    nxt, reward = env.step(s)
    target = reward + 0.7 * slow(nxt)[:, 0]
    loss = ((critic(s)[:, 0] - target) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for a, b in zip(slow.parameters(), critic.parameters()):
            a.lerp_(b, 0.1)
    s = nxt
    if step % 20 == 0 or step in (111, 112, 113, 279):
        norm = torch.stack([p.grad.norm() for p in critic.parameters()]).norm()
        print(step, loss.item(), "gradient", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
