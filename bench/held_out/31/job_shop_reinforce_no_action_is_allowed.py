"""REINFORCE with a baseline on a job shop: six machines, the policy gives a job to a free one, busy ones are masked with -inf before the softmax. FAULT at step 140: the simulator's second shift lets all six be busy at once for some jobs:
no action is allowed, the softmax over -inf alone is NaN.
Without Rangewatch: reward 0.41 to about 1.3, loss 1.56 to about 0; at step 140 loss NaN.
Cause: mask. Step: 140. Right: mask / -inf / all masked. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["mask"], "step": [139, 144], "place": None, "rank": None,
          "right": "(?i)mask|-inf|allowed|softmax", "wrong": ["[Ll]ower the learning rate", "GradScaler"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(123); torch.set_num_threads(1)
M, B = 6, 64


class Planner(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * M + 4, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, M), nn.Linear(64, 1)

    def forward(self, job, speed, free):
        h = self.body(torch.cat([job, speed, free.float()], 1))
        return self.actor(h).masked_fill(~free, float("-inf")).log_softmax(1), self.critic(h)[:, 0]


skill = torch.randn(M, 4)
net = Planner()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(180):
    job, speed, free = torch.randn(B, 4), torch.rand(B, M), torch.rand(B, M) < 0.7
    free[torch.arange(B), torch.randint(0, M, (B,))] = True
    if step >= 140:
        free[torch.randint(0, B, (3,))] = False
    logp, value = net(job, speed, free)
    gumbel = -(-torch.rand(B, M).clamp(min=1e-9).log()).log()
    action = (logp.detach() + gumbel).argmax(1)
    reward = (job @ skill.T / 2 + speed).gather(1, action[:, None])[:, 0]
    advantage = reward - value.detach()
    loss = -(advantage * logp.gather(1, action[:, None])[:, 0]).mean() + 0.5 * (reward - value).square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or 138 < step < 143:
        print(step, loss.item(), "reward", reward.mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
