"""HEALTHY: REINFORCE with sparse rewards: in most steps every return is 0, so the gradients are exactly zero; 400 steps."""
EXPECT = {"healthy": True, "cause": [""], "step": None}
import torch
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
policy = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 4))
opt = torch.optim.RMSprop(policy.parameters(), 2e-3)
watch = rangewatch.attach(policy, opt)
for episode in range(400):
    pos, logps = torch.zeros(4), []
    for t in range(6):
        dist = torch.distributions.Categorical(logits=policy(pos))
        a = dist.sample()
        logps.append(dist.log_prob(a))
        pos = pos + torch.eye(4)[a]
    reward = 1.0 if float(pos[2]) >= 4 else 0.0
    loss = -(reward * torch.stack(logps)).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    watch.log(reward=reward, loss=loss.item())
