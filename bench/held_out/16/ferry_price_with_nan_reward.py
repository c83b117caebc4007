"""A policy (REINFORCE with a learnt baseline) that sets the price of a ferry from weather and season; the reward is the profit per passenger. FAULT at step 105:
a storm day has no passenger at all, and the profit per passenger of that day is 0 / 0: one NaN among 64 rewards.
Without Rangewatch: loss 1.68 to about 0 and the mean reward 0.60 to 1.00 at step 104, NaN at step 105 and to the end.
Cause: data (the reward). Step: 105. Right: reward / NaN / input / target / batch / division. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [104, 106], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "reward|NaN|input|target|batch|data|divi"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1609); torch.set_num_threads(1)
prices = torch.linspace(0.5, 4.0, 8)


class Captain(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Sequential(nn.Linear(5, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.price, self.worth = nn.Linear(48, 8), nn.Linear(48, 1)

    def forward(self, day):
        h = self.look(day)
        return self.price(h).log_softmax(1), self.worth(h)[:, 0]


def profit_per_passenger(day, price, storm):
    wish = 2.2 + 0.8 * day[:, 0] + 0.4 * day[:, 1] * day[:, 2]  # what people would pay today
    passengers = 100 * torch.sigmoid(2 * (wish - price)) + 1
    if storm:
        passengers[11] = 0.0
    return passengers * (price - 0.4) / passengers * torch.sigmoid(2 * (wish - price))


model = Captain()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    day = torch.randn(64, 5)
    chance, worth = model(day)
    action = (chance.detach() - torch.log(-torch.log(torch.rand(64, 8)))).argmax(1)  # a draw by the Gumbel trick
    reward = profit_per_passenger(day, prices[action], step == 105)
    advantage = reward - worth
    loss = -(chance.gather(1, action[:, None])[:, 0] * advantage.detach()).mean() + 0.5 * (advantage ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 103 < step < 108 or step == 219:
        print(step, loss.item(), "mean reward", reward.mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
