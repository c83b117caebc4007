"""PPO in the way of CleanRL on a small balance task, rollouts of 160 transitions, minibatches of 64, advantages normalised per minibatch (a Stable-Baselines3 / CleanRL issue: 'NaN when the last minibatch has one sample').
FAULT at step 163: total_timesteps is 18 * 160 + 65 and the last rollout is cut to the 65 that are left; its second minibatch has one sample and (a - mean) / (std + 1e-8) is NaN since std of one value (unbiased) is NaN.
Without Rangewatch: loss 1.0 to 0.26, episodes from 25 to 60 steps, nan at step 163 in a minibatch of 1 (and torch warns: std(): degrees of freedom is <= 0).
Cause: forward_arithmetic (std of one sample) / data (minibatch of one). Step: 163. Right: drop the last minibatch, skip the normalisation for one sample, unbiased=False. Wrong: lower the learning rate, GradScaler, reward scale."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [162, 165], "place": None, "rank": None,
          "right": r"(?i)std|normali[sz]|advantage|batch (size )?(of )?(1|one)|one sample|single|drop_last|last (mini)?batch|0 ?/ ?0|loss|forward|target",
          "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
import torch.nn as nn
from torch.distributions import Categorical
import rangewatch

seed = 1
torch.manual_seed(seed); torch.set_num_threads(1)
gamma, clip_coef, ent_coef, vf_coef, minibatch = 0.97, 0.2, 0.01, 0.5, 64


def layer_init(layer, std=2 ** 0.5):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(3, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(), layer_init(nn.Linear(64, 1), 1.0))
        self.actor = nn.Sequential(layer_init(nn.Linear(3, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(), layer_init(nn.Linear(64, 3), 0.01))

    def act(self, obs, action=None):
        d = Categorical(logits=self.actor(obs))
        action = d.sample() if action is None else action
        return action, d.log_prob(action), d.entropy(), self.critic(obs).squeeze(-1)


def episode(agent):
    x, v, wind = torch.randn(1).item() * 0.3, 0.0, torch.randn(1).item() * 0.03
    rows = []
    for t in range(60):
        o = torch.tensor([x, v * 5, wind * 20])
        with torch.no_grad():
            a, lp, _, _ = agent.act(o)
        v = 0.95 * v + 0.06 * (a.item() - 1) + wind + 0.02 * torch.randn(1).item()
        x += v
        rows.append((o, a, lp, 1.0))
        if abs(x) > 1.5:
            break
    ret, out = 0.0, []
    for o, a, lp, r in reversed(rows):
        ret = r + gamma * ret
        out.append((o, a, lp, torch.tensor(ret / 10)))
    return out


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5)
handle = rangewatch.attach(agent, optimizer)
total_timesteps, seen, global_step = 18 * 160 + 65, 0, 0
while seen < total_timesteps:
    num_steps = min(160, total_timesteps - seen)
    buf, eps = [], 0
    while len(buf) < num_steps:
        buf += episode(agent); eps += 1
    length = len(buf) / eps
    buf = buf[:num_steps]
    seen += num_steps
    obs, act, logp, ret = (torch.stack(z) for z in zip(*buf))
    with torch.no_grad():
        adv_all = ret - agent.critic(obs).squeeze(-1)
    for _ in range(3):
        perm = torch.randperm(len(obs))
        for s in range(0, len(obs), minibatch):
            mb = perm[s:s + minibatch]
            _, newlogp, entropy, value = agent.act(obs[mb], act[mb])
            ratio = (newlogp - logp[mb]).exp()
            adv = adv_all[mb]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            pg = torch.max(-adv * ratio, -adv * ratio.clamp(1 - clip_coef, 1 + clip_coef)).mean()
            loss = pg - ent_coef * entropy.mean() + vf_coef * (value - ret[mb]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            if global_step % 20 == 0 or len(mb) < 3 or loss.isnan():
                print(f"step {global_step} loss {loss.item():.4f} rollout {len(obs)} minibatch {len(mb)} mean episode length {length:.1f}", flush=True)
            global_step += 1
            if loss.isnan():
                break
        if loss.isnan():
            print("nan loss, giving up")
            break
handle.detach()
