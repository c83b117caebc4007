"""PPO with an LSTM policy on a game of memory: GAE, several epochs over each rollout, actions that are not allowed."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical

from tests.faults.fault import Job, Plant

ENVS, HORIZON, OBS, ACTIONS = 8, 8, 6, 5


class Game:
    """The first observation tells which action is paid; a wrong one costs little, and noise hides it."""

    def __init__(self, seed: int) -> None:
        self.chance = torch.Generator().manual_seed(seed + 3)

    def reset(self) -> Tensor:
        self.wanted = torch.randint(ACTIONS - 1, (ENVS,), generator=self.chance)
        obs = 0.1 * torch.randn(ENVS, OBS, generator=self.chance)
        obs[torch.arange(ENVS), self.wanted] += 1.0
        return obs

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        reward = (action == self.wanted).float() + 0.3 * torch.randn(ENVS, generator=self.chance)
        return 0.1 * torch.randn(ENVS, OBS, generator=self.chance), reward


class RecurrentPolicy(nn.Module):
    def __init__(self, plant: Plant, hidden: int = 24) -> None:
        super().__init__()
        self.encoder, self.lstm = nn.Linear(OBS, hidden), nn.LSTM(hidden, hidden)
        self.actor, self.critic, self.plant = nn.Linear(hidden, ACTIONS), nn.Linear(hidden, 1), plant
        nn.init.orthogonal_(self.actor.weight, 0.01)

    def forward(self, obs: Tensor, state: Any = None, allowed: Tensor | None = None) -> tuple[Tensor, Tensor, Any]:
        h, state = self.lstm(torch.tanh(self.encoder(obs)), state)
        logits = self.actor(h)
        if allowed is not None:
            logits = torch.where(allowed, logits, torch.tensor(float("-inf")))
        return self.plant.inside("logits", logits), self.critic(h).squeeze(-1), state


@torch.no_grad()
def rollout(game: Game, policy: RecurrentPolicy, allowed: Tensor) -> dict[str, Tensor]:
    obs, state, kept = game.reset(), None, []
    for _ in range(HORIZON):
        logits, value, state = policy(obs[None], state, allowed)
        dist = Categorical(logits=logits[0], validate_args=False)
        action = dist.sample() if torch.isfinite(logits.logsumexp(-1)).all() else torch.zeros(ENVS, dtype=torch.long)
        logp = F.log_softmax(logits[0], -1).gather(-1, action[:, None]).squeeze(-1)
        after, reward = game.step(action)
        kept.append((obs, action, logp, value[0], reward))
        obs = after
    return dict(
        zip(("obs", "action", "logp", "value", "reward"), map(torch.stack, zip(*kept, strict=True)), strict=True)
    )


def gae(reward: Tensor, value: Tensor, gamma: float = 0.9, lam: float = 0.95) -> Tensor:
    advantage, last = torch.zeros_like(reward), torch.zeros(ENVS)
    for t in reversed(range(HORIZON)):
        after = value[t + 1] if t + 1 < HORIZON else torch.zeros(ENVS)
        last = reward[t] + gamma * after - value[t] + gamma * lam * last
        advantage[t] = last
    return advantage


def train(
    job: Job, steps: int = 400, plant: Plant | None = None, *, lr: float = 1e-3, epochs: int = 4, clip: float = 0.2,
    max_grad_norm: float = 0.5, masked: bool = True, entropy: float = 0.01, **options: Any,
) -> None:  # fmt: skip
    plant = plant or Plant()
    policy, game = RecurrentPolicy(plant), Game(job.seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=lr, eps=1e-5)
    allowed = torch.ones(ACTIONS, dtype=torch.bool)
    allowed[-1] = not masked
    buffer: dict[str, Tensor] = {}
    with job.attach(policy, optimizer, **options) as watch:
        for step in plant.steps(steps):
            plant.weights(policy)
            if step % epochs == 0:
                buffer = plant.batch(rollout(game, policy, allowed))
                advantage = gae(buffer["reward"], buffer["value"])
                returns = advantage + buffer["value"]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            for group in optimizer.param_groups:
                group["lr"] = plant.rate(lr * (1 - step / steps))
            logits, value, _ = policy(buffer["obs"], None, allowed)
            log_probs = F.log_softmax(logits, dim=-1)
            logp = log_probs.gather(-1, buffer["action"][..., None]).squeeze(-1)
            ratio = (logp - buffer["logp"]).exp()
            clipped = ratio.clamp(1 - clip, 1 + clip)
            pi_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
            probs = log_probs.exp()
            plogp = torch.where(probs > 0, probs * log_probs.masked_fill(probs == 0, 0.0), torch.zeros(()))
            loss = plant.loss(pi_loss + 0.5 * F.mse_loss(value, returns) + entropy * plogp.sum(-1).mean())
            optimizer.zero_grad()
            loss.backward()
            plant.gradients(policy)
            nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
            optimizer.step()
            watch.log(loss=loss.item(), reward=buffer["reward"].mean().item())


HEALTHY: dict[str, dict[str, Any]] = {
    "one action not allowed": {},
    "no masks, clipped hard": {"masked": False, "max_grad_norm": 0.05, "epochs": 2},
}
