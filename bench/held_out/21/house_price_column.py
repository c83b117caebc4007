"""A net with embeddings that estimates rents, its loss written out by hand. FAULT at step 0: the estimates are a column (96, 1), the rents a row (96,); their
difference is a table of 96 times 96, and what the net learns is the mean rent.
Without Rangewatch: loss 1.51 to 0.74 at the end, where the variance of the rents is 0.75; with the column squeezed it is 0.029.
Cause: data (the form of the targets), or forward_arithmetic (the broadcast). Step: 0 to the end, a state. Right: shape / broadcast / squeeze. Wrong:
GradScaler, lower the learning rate, mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [0, 239], "place": None, "rank": 0,
          "right": "(?i)shape|broadcast|squeeze|dimension|size", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2114)
torch.set_num_threads(1)
charm = torch.randn(30)


class Rent(nn.Module):
    def __init__(self):
        super().__init__()
        self.quarter = nn.Embedding(30, 12)
        self.gate, self.value, self.sum = nn.Linear(17, 80), nn.Linear(17, 80), nn.Linear(80, 1)

    def forward(self, quarter, flat):
        h = torch.cat([self.quarter(quarter), flat], dim=-1)
        return self.sum(self.gate(h).sigmoid() * self.value(h))


def flats(n):
    quarter, flat = torch.randint(0, 30, (n,)), torch.rand(n, 5)
    return quarter, flat, charm[quarter] + 2 * flat[:, 0] - flat[:, 1] * charm[quarter] + 0.1 * torch.randn(n)


rent = Rent()
optimizer = torch.optim.Adagrad(rent.parameters(), lr=0.05)
handle = rangewatch.attach(rent, optimizer)
for step in range(240):
    quarter, flat, price = flats(96)
    estimate = rent(quarter, flat)
    error = estimate - price
    loss = (error ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "against its own rent", (estimate[:, 0] - price).square().mean().item(), "variance", price.var().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
