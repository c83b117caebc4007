"""REINFORCE on a tiny balance task (one pole, hand-written): the policy loss is noise around 0 of either sign, the returns grow. HEALTHY: such is this method.
Without Rangewatch: loss -0.006 to 0.043, no trend; the mean length of an episode 7.3 to 29 (30 is the limit)."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(500); torch.set_num_threads(1)
policy = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
handle = rangewatch.attach(policy, optimizer)
N, LIMIT = 24, 30
for step in range(160):
    state = 0.1 * torch.randn(N, 2)
    alive, states, actions, masks = torch.ones(N), [], [], []
    for _ in range(LIMIT):
        with torch.no_grad():
            a = torch.distributions.Categorical(logits=policy(state)).sample()
        states.append(state); actions.append(a); masks.append(alive)
        speed = state[:, 1] + 0.5 * state[:, 0] + 0.12 * (2 * a - 1) + 0.02 * torch.randn(N)
        state = torch.stack((state[:, 0] + 0.3 * speed, speed), 1)
        alive = alive * (state[:, 0].abs() < 0.6).float()
        if not alive.any():
            break
    mask = torch.stack(masks)
    togo = mask.flip(0).cumsum(0).flip(0)
    weight = ((togo - togo[mask > 0].mean()) / (togo[mask > 0].std() + 1e-6)) * mask
    logp = torch.distributions.Categorical(logits=policy(torch.stack(states))).log_prob(torch.stack(actions))
    loss = -(logp * weight).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 159:
        print(step, loss.item(), "mean length", mask.sum(0).mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
