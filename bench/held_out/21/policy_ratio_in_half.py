"""Proximal policy optimisation, written without modules' containers, on a lamp that must be switched to the shown colour; the ratio of new to old probability is computed in float16.
FAULT at step 110: actions of a worker with an old policy come in (its logarithms of probability lie 14 below): exp(14) is beyond 65504, the ratio is inf. Where the advantage is
negative, min(inf * A, clipped) is -inf, the loss +inf; the gradient is NaN.
Without Rangewatch: reward 0.19 to 0.95 at step 109; loss inf at step 110, NaN from step 111 on, reward 0.18 (chance) from then on.
Cause: forward_arithmetic (overflow of float16), or the stale actions in the data. Step: 110. Right: float16 / overflow / ratio / exp / clamp. Wrong: mask, lower the learning rate."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [109, 112], "place": None, "rank": 0,
          "right": "(?i)float16|fp16|half|overflow|65504|exp|clamp|float32|range", "wrong": ["attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2128)
torch.set_num_threads(1)
ACTIONS = 6


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.see, self.act, self.value = nn.Linear(12, 128), nn.Linear(128, ACTIONS), nn.Linear(128, 1)

    def forward(self, x):
        h = torch.tanh(self.see(x))
        return self.act(h).log_softmax(1), self.value(h)[:, 0]


lamps = torch.randn(ACTIONS, 12)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
handle = rangewatch.attach(policy, optimizer)
for step in range(180):
    if step % 2 == 0:  # each batch of plays serves for two updates
        colour = torch.randint(0, ACTIONS, (128,))
        seen = lamps[colour] + 0.8 * torch.randn(128, 12)
        with torch.no_grad():
            logp, value = policy(seen)
            action = logp.exp().multinomial(1)[:, 0] if not torch.isnan(logp).any() else torch.zeros(128, dtype=torch.long)
            old = logp.gather(1, action[:, None])[:, 0]
            reward = (action == colour).float()
            advantage = reward - value
        if step == 110:
            old[:6] -= 14.0
            advantage[:6] = -advantage[:6].abs()
    logp, value = policy(seen)
    new = logp.gather(1, action[:, None])[:, 0]
    ratio = (new - old).half().exp()
    surrogate = torch.min(ratio * advantage.half(), ratio.clamp(0.8, 1.2) * advantage.half()).float()
    entropy = -(logp.exp() * logp).sum(1)
    loss = -surrogate.mean() + 0.5 * (value - reward).square().mean() - 0.01 * entropy.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 114 or step == 179:
        print(step, loss.item(), "reward", reward.mean().item(), "largest ratio", ratio.max().item(), flush=True)
    handle.log(loss=loss.item(), reward=reward.mean().item())
handle.detach()
