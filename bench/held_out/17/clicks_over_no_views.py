"""A policy that chooses one of five banners for a visitor (REINFORCE with the batch's mean as its baseline); the reward is clicks over views. FAULT at
step 130: one banner was never loaded, 0 clicks over 0 views is NaN, and the baseline carries it into the whole batch.
Without Rangewatch: reward 0.54 to 0.906 at step 129 (loss -0.10 to -0.01), both NaN at step 130; the loss is NaN from then on and the reward 0.49 to
0.55, a choice at random.
Cause: data (the reward). Step: 130. Right: reward / data / NaN input / target. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [129, 131], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "reward|data|batch|target|input|loss itself|advantage"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1608); torch.set_num_threads(1)
wish = torch.randn(10, 5)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.visitor = nn.Sequential(nn.Linear(10, 48), nn.LayerNorm(48), nn.GELU())
        self.banner = nn.Linear(48, 5)

    def forward(self, x):
        return self.banner(self.visitor(x)).log_softmax(1)


model = Policy()
optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x = torch.randn(256, 10)
    choice = model(x)
    banner = (choice.detach() - torch.log(-torch.log(torch.rand(256, 5) + 1e-20))).argmax(1)  # a sample, by Gumbel's trick
    views = torch.full((256,), 20.0)
    chance = torch.sigmoid((x @ wish).gather(1, banner[:, None])[:, 0])
    clicks = torch.binomial(views, chance)
    if step == 130:
        views[77], clicks[77] = 0.0, 0.0
    reward = clicks / views
    advantage = reward - reward.mean()
    loss = -(choice.gather(1, banner[:, None])[:, 0] * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 132 or step == 199:
        print(step, loss.item(), "reward", reward.mean().item(), flush=True)
    handle.log(loss=loss.item(), reward=reward.mean().item())
handle.detach()
