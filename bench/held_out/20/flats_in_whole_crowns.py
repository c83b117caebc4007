"""A net with embeddings of quarter and kind that values flats. FAULT from the start: the prices are in crowns (2 to 9 millions), neither divided nor
standardised; with the mean squared error and a rate of 1e-3 the output hardly leaves 0, and the loss is 3e13.
Without Rangewatch: loss 2.06e13 to 1.93e13; the mean value is 535 at step 219, the mean price 4,336,519; in millions it learns (0.44).
Cause: data (the scale of the targets), or learning_rate. Step: 0. Right: target / scale / standardise / normalise. Wrong: GradScaler, mask, lower the rate."""
EXPECT = {"cause": ["data", "learning_rate"], "step": [0, 160], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "(?i)target|scale|standardi|normali|label|unit", "least": "info"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2016); torch.set_num_threads(1)
quarter_price, kind_price = 1 + 0.5 * torch.rand(15), 1 + 0.3 * torch.rand(4)


class Value(nn.Module):
    def __init__(self):
        super().__init__()
        self.quarter, self.kind = nn.Embedding(15, 6), nn.Embedding(4, 3)
        self.net = nn.Sequential(nn.Linear(11, 50), nn.ReLU(), nn.Dropout(0.1), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))

    def forward(self, quarter, kind, rest):
        return self.net(torch.cat((self.quarter(quarter), self.kind(kind), rest), 1))[:, 0]


model = Value()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    quarter, kind, rest = torch.randint(0, 15, (64,)), torch.randint(0, 4, (64,)), torch.randn(64, 2)
    price = 3_000_000 * quarter_price[quarter] * kind_price[kind] * (1 + 0.2 * torch.tanh(rest[:, 0]))
    value = model(quarter, kind, rest)
    loss = F.mse_loss(value, price)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "mean price", price.mean().item(), "mean value", value.mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
