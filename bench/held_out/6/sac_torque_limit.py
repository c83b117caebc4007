"""Soft actor-critic on a small linear system. log(1 - action ** 2 + 1e-6) is taken of the scaled action. FAULT at step 130: the curriculum lets the
torque go to 2 instead of 1, the argument of the log is negative for every |action| above 1: NaN in the forward, outside of any module.
Without Rangewatch: loss 1.09 to 0.64 at step 129, NaN at step 130, all weights NaN from then on; rewards are -0.84 and -1.12.
Report: philtabor/Actor-Critic-Methods-Paper-To-Code#7, cpnota/autonomous-learning-library#139 (both this very line).
Cause: forward arithmetic. Step: 130. Right: log of a negative number / clamp / eps. Wrong: learning rate, attention mask, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [130, 131], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "log|negative|clamp|eps|square|non-finite|operation"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(602); torch.set_num_threads(1)
STATE, ACTION = 6, 2
A, B = 0.9 * torch.eye(STATE) + 0.03 * torch.randn(STATE, STATE), 0.4 * torch.randn(ACTION, STATE)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(STATE, 48), nn.ReLU(), nn.Linear(48, 2 * ACTION))
        self.critic = nn.Sequential(nn.Linear(STATE + ACTION, 48), nn.ReLU(), nn.Linear(48, 1))

    def sample(self, state, max_action):
        mean, log_std = self.actor(state).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 1).exp())
        raw = normal.rsample()
        action = torch.tanh(raw) * max_action
        log_prob = normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(-1, keepdim=True)

    def forward(self, state, max_action):
        action, log_prob = self.sample(state, max_action)
        return action, log_prob, self.critic(torch.cat([state, action], -1))


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
handle = rangewatch.attach(agent, optimizer)
for step in range(190):
    max_action = 1.0 if step < 130 else 2.0  # the curriculum lets the motors have their whole torque
    state = torch.randn(64, STATE)
    action, log_prob, q = agent(state, max_action)
    with torch.no_grad():
        after = state @ A + action @ B
        target = -after.pow(2).mean(-1, keepdim=True) - 0.05 * action.pow(2).mean(-1, keepdim=True)
    seen = agent.critic(torch.cat([state, action.detach()], -1))
    loss = F.mse_loss(seen, target) + (0.05 * log_prob - q).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (129, 130, 131):
        print(step, loss.item(), target.mean().item(), action.abs().max().item(), flush=True)
handle.detach()
