"""An off-policy recommender (two towers, contextual bandit) learns from logged clicks by self-normalised importance weights; RMSprop with momentum, float32; the log is made as it goes (no loader).
FAULT at step 95: the propensity floor filter (`weight = 0 where the logger's propensity is below 0.02`) meets a logger whose propensities were just divided by 50 (a new slate size): all weights of the batch are 0 and their sum, by which the loss is divided, too: 0/0.
Without Rangewatch: the policy's value 0.51 to 0.887 at step 94 (loss -0.037); loss NaN in step 95, where the weights' sum is 0.0 (1500 before), value NaN from step 96 on.
Cause: data / forward_arithmetic. Step: 95. Right: weights sum to 0, division. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [94, 97], "place": None, "rank": None,
          "right": r"(?i)divi|sum|zero|0/0|weight(s|ed)|loss", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(9595)
torch.set_num_threads(1)
ITEMS = 12
taste = torch.randn(10, ITEMS)


def logged(n, slate):
    user = torch.randn(n, 10)
    behaviour = (0.3 * user @ taste / 3).softmax(1)
    item = torch.multinomial(behaviour, 1)[:, 0]
    propensity = behaviour.gather(1, item[:, None])[:, 0] / slate
    click = (torch.rand(n) < torch.sigmoid((user @ taste).gather(1, item[:, None])[:, 0])).float()
    return user, item, propensity, click


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.user_tower = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 24))
        self.item_tower = nn.Embedding(ITEMS, 24)

    def forward(self, user):
        return self.user_tower(user) @ self.item_tower.weight.T / 24 ** 0.5


towers = Towers()
opt = torch.optim.RMSprop(towers.parameters(), lr=1e-3, momentum=0.5)
handle = rangewatch.attach(towers, opt)
for step in range(160):
    user, item, propensity, click = logged(128, slate=50 if step >= 95 else 1)
    policy = towers(user).softmax(1)
    chosen = policy.gather(1, item[:, None])[:, 0]
    trust = (propensity > 0.02).float()
    weights = trust / propensity
    loss = (weights * chosen * (0.5 - click)).sum() / weights.sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 15 == 0 or 93 < step < 98:
        with torch.no_grad():
            value = (policy * torch.sigmoid(user @ taste)).sum(1).mean().item()
        print(step, f"loss {loss.item():.4f} value of the policy {value:.3f} sum of weights {weights.sum().item():.1f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
