"""REINFORCE in a card game: play a card higher than the table's, illegal cards get the logit -inf on purpose. HEALTHY: masks with -inf and a noisy reward.
Without Rangewatch: reward 0.28 to 0.6 to 0.8 (noisy), loss about 0."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical
import rangewatch

torch.manual_seed(6141); torch.set_num_threads(1)
policy = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
handle = rangewatch.attach(policy, optimizer)
base = 0.0
for step in range(250):
    hand = (torch.rand(64, 10) < 0.4).float()
    hand[:, 9] = 1
    table = torch.randint(0, 9, (64,))
    logits = policy(torch.cat((hand, F.one_hot(table, 10).float()), 1))
    legal = (hand > 0) & (torch.arange(10) > table[:, None])
    pi = Categorical(logits=logits.masked_fill(~legal, float("-inf")))
    card = pi.sample()
    reward = 1 - (card - table - 1).float() / 4 + 0.5 * torch.randn(64)
    base = 0.9 * base + 0.1 * reward.mean().item()
    loss = -(pi.log_prob(card) * (reward - base)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 249:
        print(step, loss.item(), "reward", reward.mean().item(), flush=True)
    handle.log(loss=loss.item(), reward=reward.mean().item())
handle.detach()
