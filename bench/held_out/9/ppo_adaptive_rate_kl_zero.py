"""PPO for a small continuous task with a learning rate that follows the KL divergence from the policy of the rollout: too small, times 1.5. FAULT from
step 0 on: the old policy is not kept but computed anew with the present weights, so that the KL is 0 at every step, and the rate grows by half every
fourth step, without an upper bound, until the actor and the critic fly away. Gradients are clipped to 1, all stays finite.
Without Rangewatch: lr 3e-4, 2.3e-3 at step 20, 0.039 at step 50, 0.13 at step 60, 57 at step 120; loss 53.6 to 2.2 at step 50, 2892 at step 60, 2.6e6
at step 70; mean reward -7.8 to -2.4 at step 50, -59 at step 60, -2567 at step 70.
Report: leggedrobotics/rsl_rl#221 (the adaptive rate starts from the wrong value), tinker495/jax-baseline#64 (times 1.5 only where KL is above 0),
junxiaosong/AlphaZero_Gomoku#49.
Cause: learning_rate. Step: 0 to 100. Right: learning rate / schedule. Wrong: GradScaler, mask, data order."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 100], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "shuffl"],
          "right": "learning rate|lr\\b|schedul|adaptive|step size"}
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
import rangewatch

torch.manual_seed(802); torch.set_num_threads(1)
DESIRED_KL, STATES, ACTIONS = 0.01, 12, 3
gain = torch.randn(STATES, ACTIONS) / STATES ** 0.5


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(STATES, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, ACTIONS))
        self.critic = nn.Sequential(nn.Linear(STATES, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 1))
        self.log_std = nn.Parameter(torch.zeros(ACTIONS))

    def forward(self, s):
        return Normal(self.actor(s), self.log_std.exp()), self.critic(s).squeeze(-1)


model = ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
handle = rangewatch.attach(model, optimizer)
for step in range(160):
    if step % 4 == 0:  # a new rollout, four updates on it
        with torch.no_grad():
            state = torch.randn(256, STATES)
            policy, value = model(state)
            action = policy.sample()
            reward = -((action - state @ gain) ** 2).sum(1)
            old_log_prob = policy.log_prob(action).sum(1)
            advantage = reward - value
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy, value = model(state)
    with torch.no_grad():
        old = model(state)[0]  # the old policy should have been kept from the rollout
        kl = kl_divergence(old, policy).sum(1).mean()
        lr = optimizer.param_groups[0]["lr"]
        if step % 4 == 3:
            if kl > 2 * DESIRED_KL:
                lr /= 1.5
            elif kl < DESIRED_KL / 2:
                lr *= 1.5
            optimizer.param_groups[0]["lr"] = lr
    ratio = (policy.log_prob(action).sum(1) - old_log_prob).exp()
    surrogate = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    loss = surrogate + 0.5 * ((value - reward) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 10 == 0 or step == 159:
        print(step, loss.item(), "reward", reward.mean().item(), "lr", lr, flush=True)
    handle.log(loss=loss.item(), reward=reward.mean().item(), lr=lr)
handle.detach()
