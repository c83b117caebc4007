"""An LSTM foretells a customer's next basket; the model turns counts of goods into shares, counts / counts.sum(). FAULT at step 125: one week of one
customer is empty, and 0 / 0 is NaN.
Without Rangewatch: loss 0.99 to 0.70 at step 124, NaN from step 125 on, and all weights.
Variant of: division_by_zero (here shares within a recurrent model, of one row).
Cause: forward_arithmetic (or data: an empty row). Step: 125. Right: divi / zero / eps / clamp / empty. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [124, 128], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "divi|zero|eps|clamp|empty|0 / 0|0/0"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1405); torch.set_num_threads(1)
GOODS, WEEKS = 12, 8


class Baskets(nn.Module):
    def __init__(self):
        super().__init__()
        self.weeks = nn.LSTM(GOODS, 32, batch_first=True)
        self.next = nn.Linear(32, GOODS)

    def forward(self, counts):
        shares = counts / counts.sum(2, keepdim=True)
        return self.next(self.weeks(shares)[0][:, -1])


def customers(n):
    taste = 3.0 * torch.rand(n, 1, GOODS) ** 4
    rows = torch.poisson(taste.expand(n, WEEKS + 1, GOODS))
    rows[:, :, 0] += 1.0  # everybody buys milk
    return rows[:, :-1], rows[:, -1]


model = Baskets()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y = customers(32)
    if step == 125:
        x[20, 3] = 0.0
    loss = F.poisson_nll_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 123 < step < 128:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
