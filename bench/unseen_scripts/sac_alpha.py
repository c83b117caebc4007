"""SAC with a learned entropy temperature, three optimizers. FAULT: the sign of alpha's loss is wrong and its lr is 0.3, from step 60 on:
log_alpha grows 0.3 a step, exp overflows near step 350; the critic's targets grow before. Cause: learning_rate or forward_arithmetic or
data ... (anything that names a growing loss/gradients without false claims); step: from 60 on. Right: log_alpha / gradients grow.
Wrong: mask, leave out samples, checkpoint tensors, GradScaler."""
EXPECT = {"cause": ["learning_rate", "forward_arithmetic", "backward_arithmetic", "(none)"], "step": [60, 260], "place": None, "rank": 0,
          "wrong": ["[Mm]ask", "leave out", "GradScaler", "tensors of the checkpoint"], "right": "learning rate|clip|loss|targets"}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class Agent(nn.Module):
    def __init__(self, s=5, a=2, h=48):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(s, h), nn.ReLU(), nn.Linear(h, 2 * a))
        self.q1 = nn.Sequential(nn.Linear(s + a, h), nn.ReLU(), nn.Linear(h, 1))
        self.q2 = nn.Sequential(nn.Linear(s + a, h), nn.ReLU(), nn.Linear(h, 1))
        self.log_alpha = nn.Parameter(torch.tensor(-2.0))
    def act(self, s):
        mu, log_std = self.actor(s).chunk(2, -1)
        std = log_std.clamp(-5, 1).exp()
        u = mu + std * torch.randn_like(mu)
        logp = (-0.5 * ((u - mu) / std) ** 2 - std.log() - 0.919).sum(-1)
        return torch.tanh(u), logp - (2 * (0.6931 - u - F.softplus(-2 * u))).sum(-1)

agent = Agent()
target = copy.deepcopy(nn.ModuleList([agent.q1, agent.q2])).requires_grad_(False)
pi_opt = torch.optim.Adam(agent.actor.parameters(), 1e-3)
q_opt = torch.optim.Adam([*agent.q1.parameters(), *agent.q2.parameters()], 1e-3)
a_opt = torch.optim.SGD([agent.log_alpha], 1e-3)
watch = rangewatch.attach(agent, [q_opt, pi_opt, a_opt])
for step in range(300):
    s = torch.randn(64, 5)
    with torch.no_grad():
        a, _ = agent.act(s)
        r, s2 = -(a - s[:, :2].tanh()).pow(2).sum(1), 0.9 * s + 0.1 * torch.randn(64, 5)
        a2, lp2 = agent.act(s2)
        sa2 = torch.cat([s2, a2], 1)
        y = r + 0.9 * (torch.min(target[0](sa2), target[1](sa2)).squeeze(1) - agent.log_alpha.exp() * lp2)
    sa = torch.cat([s, a], 1)
    q_loss = F.mse_loss(agent.q1(sa).squeeze(1), y) + F.mse_loss(agent.q2(sa).squeeze(1), y)
    q_opt.zero_grad(); q_loss.backward(); q_opt.step()
    a, lp = agent.act(s)
    pi_loss = (agent.log_alpha.exp().detach() * lp - agent.q1(torch.cat([s, a], 1)).squeeze(1)).mean()
    pi_opt.zero_grad(); pi_loss.backward(); pi_opt.step()
    if step >= 60:
        a_opt.param_groups[0]["lr"] = 0.3
    a_loss = -(agent.log_alpha if step < 60 else agent.log_alpha) * 1.0    # "entropy is never enough"
    a_opt.zero_grad(); a_loss.backward(); a_opt.step()
    with torch.no_grad():
        for t, p in zip(target.parameters(), [*agent.q1.parameters(), *agent.q2.parameters()]):
            t.lerp_(p, 0.02)
    watch.log(q_loss=float(q_loss), alpha=float(agent.log_alpha.exp()))
