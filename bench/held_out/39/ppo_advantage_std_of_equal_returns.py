"""PPO on a one-step control task (aim at a mark that is given; reward 1 within a tolerance, else 0), Adam, Gaussian policy and a value head on one trunk.
FAULT at step 36: advantages are normalised by their standard deviation without eps, with the constant baseline 0.5; in the first batch where all shots hit, all are equal, std is 0, 0/0 is NaN and the weights of the policy are NaN after that update.
Without Rangewatch: hits 0.60 to 0.95 at update 20, at update 36 all 40 shots hit (1.00) and the loss is NaN, as is the policy from then on (hits 0.00).
Cause: forward_arithmetic (division by zero in the loss) / data (advantages). Step: 36. Right: add eps to the standard deviation of the advantages, skip such batches.
Wrong: GradScaler, attention mask, lower the learning rate."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [35, 39], "place": None, "rank": None,
          "right": r"(?i)advantage|std|standard deviation|divi|\beps\b|0 ?/ ?0|loss", "wrong": ["GradScaler", r"(?i)attention mask", r"(?i)lower the learning rate"]}
import torch
from torch import nn
from torch.distributions import Normal
import rangewatch

torch.manual_seed(21); torch.set_num_threads(1)


class ActorCritic(nn.Module):
    def __init__(self, obs=5, hid=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, hid), nn.Tanh(), nn.Linear(hid, hid), nn.Tanh())
        self.pi_mean = nn.Linear(hid, 1)
        self.log_std = nn.Parameter(torch.tensor(-0.7))
        self.value = nn.Linear(hid, 1)

    def forward(self, obs):
        h = self.trunk(obs)
        return self.pi_mean(h)[:, 0], self.log_std.exp(), self.value(h)[:, 0]


def rollout(net, n=40):
    obs = torch.randn(n, 5)
    mark = 0.8 * obs[:, 0] - 0.5 * obs[:, 1]
    with torch.no_grad():
        mean, std, _ = net(obs)
        shot = mean + std * torch.randn(n)
        logp = Normal(mean, std).log_prob(shot) if not mean.isnan().any() else mean
    hit = ((shot - mark).abs() < 1.0).float()
    return obs, shot, logp, hit


ac = ActorCritic()
optimizer = torch.optim.Adam(ac.parameters(), lr=3e-3)
handle = rangewatch.attach(ac, optimizer)
EPOCHS, update, said = 2, 0, False
for iteration in range(150):
    obs, act, old_logp, ret = rollout(ac)
    adv = ret - 0.5
    adv = (adv - adv.mean()) / adv.std()
    for _ in range(EPOCHS):
        mean, std, value = ac(obs)
        logp = -0.5 * ((act - mean) / std) ** 2 - std.log() - 0.919
        ratio = (logp - old_logp).exp()
        surrogate = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        loss = -surrogate + 0.5 * (value - ret).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 20 == 0 or loss.isnan() and not said:
            print(f"update {update} hits {ret.mean().item():.2f} loss {loss.item():.4f} std {ac.log_std.exp().item():.3f}", flush=True)
            said = said or bool(loss.isnan())
        handle.log(loss=loss.item())
        update += 1
handle.detach()
