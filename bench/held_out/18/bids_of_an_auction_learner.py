"""A learner of bids for advertisements: the net gives a value for each of five bids, the value of the bid that was made is gathered and held against the
profit. FAULT from the first step on: gather gives (batch, 1), the profits are (batch,): the difference is a square of batch times batch, and each value is
fitted to the mean profit of the whole batch.
Without Rangewatch: loss 0.125 to 0.117, which is the variance of the profit (0.114); with squeezed values it is 0.022 at the end.
Cause: none has to be named; data or forward_arithmetic (shapes) will do. Step: from 0 on. Right: shape / broadcast / squeeze / dimension. Wrong:
GradScaler, mask, lower the rate."""
EXPECT = {"cause": ["data", "forward_arithmetic", "(none)", ""], "step": [0, 150], "place": None, "rank": 0, "least": "info",
          "wrong": ["GradScaler", "attention mask", "(?i)lower the learning rate"],
          "right": "(?i)shape|broadcast|squeeze|dimension|unsqueeze|size"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1813); torch.set_num_threads(1)
BIDS = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
wish = torch.randn(10) * 0.6

model = nn.Sequential(nn.Linear(10, 64), nn.Mish(), nn.Linear(64, 64), nn.Mish(), nn.Linear(64, 5))
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)


def log_of_auctions(n):
    person = torch.randn(n, 10)
    bid = torch.randint(0, 5, (n,))
    worth = 2 * torch.sigmoid(person @ wish)
    profit = (worth - BIDS[bid]) * (BIDS[bid] > 0.4 * worth)
    return person, bid, profit


for step in range(200):
    person, bid, profit = log_of_auctions(64)
    value = model(person).gather(1, bid[:, None])
    loss = ((value - profit) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 199:
        true = (value[:, 0] - profit).square().mean().item()
        print(step, loss.item(), "true error", true, "variance of the profit", profit.var().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
