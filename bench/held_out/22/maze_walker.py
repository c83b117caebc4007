"""REINFORCE with a running baseline: 48 walkers in a maze of 6 x 6 cells look for the corner; the policy is a net of two layers over a one-hot cell.
FAULT at step 0: the rate of Adam is 5 (it should be 0.005). After the first step all logits are in the hundreds, the policy is certain of one action per cell,
its entropy is 0 and nothing can be learned any more.
Without Rangewatch: the entropy is 1.38 at step 0, 0.003 at step 1, 1e-28 at step 20; the return stays at -0.04 to -0.32 to the end (with 0.005 it is 0.92 at the end).
Causes: learning_rate. Right: lower the learning rate. Wrong: a GradScaler, an attention mask."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 60], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|rate", "wrong": ["GradScaler", "attention mask", "[Rr]aise the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2203); torch.set_num_threads(1)
N = 6
moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
walls = torch.zeros(N, N, dtype=torch.bool)
walls[1, 1:4] = walls[3, 2:5] = True
free = (~walls).nonzero()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = nn.Linear(N * N, 128)
        self.think = nn.Linear(128, 64)
        self.act = nn.Linear(64, 4)

    def forward(self, cell):
        h = torch.tanh(self.see(F.one_hot(cell[:, 0] * N + cell[:, 1], N * N).float()))
        return self.act(torch.tanh(self.think(h)))


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=5)
handle = rangewatch.attach(policy, optimizer)
baseline = 0.0
for step in range(200):
    cell, done = free[torch.randint(0, len(free), (48,))], torch.zeros(48, dtype=torch.bool)
    logp, rewards, entropy = [], [], []
    for _ in range(16):
        d = torch.distributions.Categorical(logits=policy(cell))
        a = d.sample()
        new = (cell + moves[a]).clamp(0, N - 1)
        new = torch.where(walls[new[:, 0], new[:, 1]][:, None], cell, new)
        cell = torch.where(done[:, None], cell, new)
        logp.append(d.log_prob(a) * ~done)
        entropy.append(d.entropy().mean())
        rewards.append(torch.where(done, 0.0, torch.where((cell == N - 1).all(1), 1.0, -0.02)))
        done = done | (cell == N - 1).all(1)
    to_go = torch.stack(rewards).flip(0).cumsum(0).flip(0)
    baseline = 0.9 * baseline + 0.1 * to_go[0].mean().item()
    loss = -(torch.stack(logp) * (to_go - baseline)).sum(0).mean() - 0.05 * torch.stack(entropy).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item(), reward=to_go[0].mean().item())
    if step % 20 == 0 or step in (1, 2, 199):
        print(step, "loss", loss.item(), "return", to_go[0].mean().item(), "entropy", torch.stack(entropy).mean().item(), flush=True)
handle.detach()
