"""A contextual bandit: a soft policy with an entropy bonus and a running baseline sells one of eight offers. FAULT at step 125: one reward of the log is NaN (a price is missing);
the advantage, the loss and all weights are NaN from then on.
Without Rangewatch: reward -0.1 to 1.4 at step 124; loss NaN from step 125 on, the reward is about 0 then.
Cause: data. Step: 125. Right: reward / target / data / NaN / batch. Wrong: GradScaler, attention mask, lower the rate."""
EXPECT = {"cause": ["data"], "step": [124, 126], "place": None, "rank": 0,
          "right": "(?i)reward|target|data|batch|input|label|loss", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2428); torch.set_num_threads(1)
worth = torch.randn(20, 8)


class Seller(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.LayerNorm(20)
        self.wide, self.deep = nn.Linear(20, 8), nn.Sequential(nn.Linear(20, 120), nn.ReLU6(), nn.Linear(120, 8))

    def forward(self, x):
        x = self.scale(x)
        return (self.wide(x) + self.deep(x)).log_softmax(1)


policy = Seller()
optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
handle = rangewatch.attach(policy, optimizer)
baseline = 0.0
for step in range(190):
    client = torch.randn(96, 20)
    log_p = policy(client)
    gumbel = -torch.log(-torch.log(torch.rand(96, 8).clamp(1e-6, 1 - 1e-6)))
    offer = (log_p.detach() + gumbel).argmax(1)
    reward = (client @ worth / 4).gather(1, offer[:, None])[:, 0] + 0.3 * torch.randn(96)
    if step == 125:
        reward[40] = float("nan")
    advantage = reward - baseline
    baseline = 0.9 * baseline + 0.1 * reward.mean().item()
    chosen = log_p.gather(1, offer[:, None])[:, 0]
    entropy = -(log_p.exp() * log_p).sum(1).mean()
    loss = -(advantage * chosen).mean() - 0.01 * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or 123 < step < 128 or step == 189:
        print(step, loss.item(), "reward", reward.mean().item(), flush=True)
    handle.log(loss=loss.item(), reward=reward.mean().item())
handle.detach()
