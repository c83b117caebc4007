"""A policy that steers a boat to a buoy, REINFORCE with a learned baseline and entropy bonus (CleanRL / SB3 discussion: 'policy loss does not decrease, is that normal?').
HEALTHY: the policy loss swings about 0 from first to last and has no meaning as a measure; the return is what grows, the entropy falls slowly. Nothing needs a change.
Without Rangewatch: policy loss -0.05 to +0.23; reward -1.55 to -0.80, value loss 3.1 to 0.3, entropy 1.61 to 0.97."""
EXPECT = {"healthy": True}
import torch
from torch import nn
from torch.distributions import Categorical
import rangewatch

torch.manual_seed(90); torch.set_num_threads(1)
ENVS, HORIZON = 32, 12
MOVES = torch.tensor([[0., 1.], [0., -1.], [1., 0.], [-1., 0.], [0., 0.]]) * 0.3


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 5))
        self.v = nn.Sequential(nn.Linear(5, 48), nn.Tanh(), nn.Linear(48, 1))


ac = ActorCritic()
nn.init.normal_(ac.pi[2].weight, std=0.01); nn.init.zeros_(ac.pi[2].bias)
opt_pi = torch.optim.Adam(ac.pi.parameters(), lr=4e-3)
opt_v = torch.optim.Adam(ac.v.parameters(), lr=5e-3)
handle = rangewatch.attach(ac, [opt_pi, opt_v])


@torch.no_grad()
def rollout():
    boat, buoy = torch.randn(ENVS, 2), torch.randn(ENVS, 2)
    O, A, R = [], [], []
    for _ in range(HORIZON):
        o = torch.cat([boat, buoy], 1)
        a = Categorical(logits=ac.pi(o)).sample()
        boat = boat + MOVES[a] + 0.05 * torch.randn(ENVS, 2)
        O.append(o); A.append(a); R.append(-(boat - buoy).norm(dim=1))
    G, out = torch.zeros(ENVS), []
    for r in reversed(R):
        G = r + 0.9 * G
        out.append(G / 5)
    return torch.stack(O), torch.stack(A), torch.stack(out[::-1]), torch.stack(R).mean().item()


for step in range(160):
    O, A, G, reward = rollout()
    togo = torch.linspace(1, 0, HORIZON)[:, None, None].expand(HORIZON, ENVS, 1)
    value = ac.v(torch.cat([O, togo], 2)).squeeze(-1)
    d = Categorical(logits=ac.pi(O))
    adv = (G - value).detach()
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    policy_loss = -(d.log_prob(A) * adv).mean() - 0.01 * d.entropy().mean()
    value_loss = (value - G).pow(2).mean()
    opt_pi.zero_grad(); opt_v.zero_grad()
    (policy_loss + value_loss).backward()
    opt_pi.step(); opt_v.step()
    handle.log(loss=policy_loss.item(), value_loss=value_loss.item(), reward=reward)
    if step % 25 == 0 or step == 159:
        print(f"step {step} loss {policy_loss.item():+.4f} value loss {value_loss.item():.3f} reward {reward:.3f} entropy {d.entropy().mean().item():.3f}", flush=True)
handle.detach()
