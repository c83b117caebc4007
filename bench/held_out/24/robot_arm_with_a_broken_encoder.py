"""An actor and critic with a shared trunk that learn to keep a two-jointed arm at rest; 64 arms at once, one-step returns. FAULT at step 120: the encoder of one joint reads 1e30
for one step; the value and the loss overflow (the square of 1e30), the net is NaN from then on.
Without Rangewatch: loss 17 to 2.2 at step 119, inf at step 120, NaN from step 121 on.
Cause: data. Step: 120. Right: observation / input / data / batch. Wrong: GradScaler, attention mask, lower the rate."""
EXPECT = {"cause": ["data"], "step": [119, 121], "place": None, "rank": 0,
          "right": "(?i)observ|input|data|batch|sample", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2415); torch.set_num_threads(1)


class Arm(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 96), nn.ELU(), nn.Linear(96, 96), nn.ELU())
        self.actor, self.critic = nn.Linear(96, 2), nn.Linear(96, 1)
        self.spread = nn.Parameter(torch.full((2,), -0.5))

    def forward(self, o):
        h = self.trunk(o)
        return torch.distributions.Normal(self.actor(h), self.spread.exp(), validate_args=False), self.critic(h)[:, 0]


agent = Arm()
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
handle = rangewatch.attach(agent, optimizer)
state = torch.randn(64, 4)
for step in range(200):
    seen = state.clone()
    if step == 120:
        seen[5, 1] = 1e30
    policy, value = agent(seen)
    torque = (policy.loc + policy.scale * torch.randn(64, 2)).detach()
    speed = 0.7 * state[:, 2:] + 0.3 * torque.clamp(-2, 2) - 0.2 * state[:, :2]
    after = torch.cat((state[:, :2] + 0.2 * speed, speed), 1)
    reward = -(after ** 2).sum(1)
    with torch.no_grad():
        target = reward + 0.5 * agent(after)[1]
    advantage = (target - value).detach()
    actor_loss = -(policy.log_prob(torque).sum(1) * advantage).mean()
    critic_loss = (value - target).pow(2).mean()
    loss = 0.2 * actor_loss + critic_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state = torch.where(torch.rand(64, 1) < 0.3, torch.randn(64, 4), after).nan_to_num(0.0)
    if step % 15 == 0 or 118 < step < 123 or step == 199:
        print(step, loss.item(), "critic", critic_loss.item(), "reward", reward.mean().item(), flush=True)
    handle.log(loss=loss.item(), reward=reward.mean().item())
handle.detach()
