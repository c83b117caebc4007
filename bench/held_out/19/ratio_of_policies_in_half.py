"""A policy that steers a greenhouse, by PPO with the sums of the log probabilities of 12 levers in float16. FAULT at step 88: the policy that gave the
actions is by mistake the one of the very first step (a stale copy), so that the sum of log differences exceeds 11.1; exp of it is inf in float16 (65504),
inf times a negative advantage is -inf, and the loss has no bounds.
Without Rangewatch: reward 3.3 to 7.2 at step 87; the largest ratio is inf and the loss 921 at step 88, all NaN from step 89 on.
Cause: forward_arithmetic (exp overflows float16). Step: 88. Right: exp / float16 / float32 / clamp / ratio. Wrong: mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [87, 89], "place": None, "rank": 0,
          "wrong": ["(?i)attention mask", "(?i)lower the learning rate"],
          "right": "(?i)\\bexp|float16|fp16|half|float32|clamp|overflow|ratio|65504"}
import copy
import torch
from torch import nn
import rangewatch

torch.manual_seed(1931); torch.set_num_threads(1)
LEVERS, CHOICES = 12, 4


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.levers = nn.Linear(48, LEVERS * CHOICES)

    def forward(self, state):
        return self.levers(self.body(state)).unflatten(1, (LEVERS, CHOICES)).log_softmax(2)


best = torch.randn(8, LEVERS * CHOICES)


def log_of(policy, state, action):
    return policy(state).gather(2, action[:, :, None])[:, :, 0].sum(1)


model = Policy()
first = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(160):
    state = torch.randn(64, 8)
    with torch.no_grad():
        action = torch.distributions.Categorical(logits=model(state).nan_to_num()).sample()
        wanted = (state @ best).unflatten(1, (LEVERS, CHOICES)).argmax(2)
        reward = (action == wanted).float().sum(1)
        advantage = (reward - reward.mean()) / reward.std()
        old = log_of(first if step >= 88 else model, state, action)
    ratio = (log_of(model, state, action) - old).half().exp().float()
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 86 < step < 92 or step == 159:
        print(step, loss.item(), "reward", reward.mean().item(), "largest ratio", ratio.max().item(), flush=True)
    handle.log(loss=loss.item(), reward=reward.mean().item())
handle.detach()
