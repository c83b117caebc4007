"""RL: value function of a gantry crane from random roll-outs (TD(0) with a target network, Adam); observations go through a running normaliser kept in buffers.
FAULT at step 130: the angle encoder wraps and one batch of observations holds 1e8 in one channel for a few rows; the loss survives (inputs are clipped to +-5 after normalising) but the running mean and variance are spoiled for good: afterwards all observations look equal.
Without Rangewatch: TD loss 1.3 to 2.2 before, 7.6 at step 130, then 1.5 to 3.7; the correlation of value and goal was 0.4 to 0.9 and lies about 0 afterwards; the running deviation is 2.3 before and 2e6 after.
Cause: data (spike of 1e8 in the observations). Step: 130. Right: filter or clip the observations before the statistics, reset the statistics. Wrong: raise the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [129, 140], "place": None, "rank": None,
          "right": r"(?i)data|batch|input|observation|outlier|spike|running|statistic|buffer|filter|clip the", "wrong": [r"(?i)(raise|increase) the learning rate", "GradScaler", r"(?i)attention mask"]}
import copy
import torch
from torch import nn
import rangewatch

torch.manual_seed(5); torch.set_num_threads(1)


class RunningNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))
        self.register_buffer("count", torch.tensor(1e-2))

    def forward(self, obs):
        if self.training:
            with torch.no_grad():
                n, m, v = len(obs), obs.mean(0), obs.var(0, unbiased=False)
                total = self.count + n
                delta = m - self.mean
                self.var.copy_((self.var * self.count + v * n + delta ** 2 * self.count * n / total) / total)
                self.mean.add_(delta * n / total)
                self.count.copy_(total)
        return ((obs - self.mean) / (self.var + 1e-6).sqrt()).clamp(-5, 5)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.obs_norm = RunningNorm(4)
        self.body = nn.Sequential(nn.Linear(4, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU())
        self.value = nn.Linear(64, 1)

    def forward(self, o):
        return self.value(self.body(self.obs_norm(o))).squeeze(-1)


class Cranes:
    """64 cranes side by side: position, speed, angle, angular speed."""
    def __init__(self, n=64):
        self.s = torch.randn(n, 4)

    def step(self):
        x, v, a, w = self.s.unbind(1)
        push = -0.2 * x - 0.5 * v + 0.3 * torch.randn_like(x)
        acc = push - 0.1 * a
        nxt = torch.stack([x + 0.1 * v, v + 0.1 * acc, a + 0.1 * w, w + 0.1 * (-2 * a - 0.2 * w + acc)], 1)
        reset = torch.rand(len(x)) < 0.04
        nxt[reset] = 2 * torch.randn(int(reset.sum()), 4)
        reward = -x.abs() - 2 * a.abs()
        old, self.s = self.s, nxt
        return old, reward, nxt, reset


critic = Critic()
target = copy.deepcopy(critic).eval()
optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3)
handle = rangewatch.attach(critic, optimizer)
cranes = Cranes()
for update in range(300):
    old, reward, new, done = cranes.step()
    if update == 130:
        old = old.clone()
        old[10:14, 2] = 1e8
        old[40:44, 0] = -1e8
        old[20:24, 1] = 1e8
        old[50:54, 3] = 1e8
    with torch.no_grad():
        goal = reward + 0.9 * target(new) * (~done).float()
    value = critic(old)
    loss = nn.functional.smooth_l1_loss(value, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for t, p in zip(target.state_dict().values(), critic.state_dict().values()):
            t.lerp_(p, 0.1)
        target.obs_norm.load_state_dict(critic.obs_norm.state_dict())
    handle.log(loss=loss.item())
    if update % 25 == 0 or update in (129, 130, 131, 132):
        with torch.no_grad():
            agree = torch.corrcoef(torch.stack([value, goal]))[0, 1].item()
            spread = critic.obs_norm.var.sqrt().max().item()
        print(f"update {update} td loss {loss.item():.4f} correlation of value and goal {agree:.2f} largest running deviation {spread:.3g}", flush=True)
handle.detach()
