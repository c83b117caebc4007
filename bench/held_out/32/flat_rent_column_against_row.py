"""Rents of flats from nine numbers by a small gated MLP, Adam. FAULT from step 0: the net gives (N, 1) and the targets are (N,); `(pred - y) ** 2` broadcasts to (N, N), and the net learns the mean of the batch for every flat.
Without Rangewatch: loss 4.1 to 3.8, always the variance of y (squeezed: 0.027).
Cause: forward_arithmetic (broadcast). Step: from 0. Right: shape / broadcast / squeeze. Wrong: GradScaler, attention mask, clip."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [0, 80], "place": None, "rank": None,
          "right": "(?i)broadcast|shape|squeeze", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(410); torch.set_num_threads(1)
price = torch.randn(9)


def flats(n):
    x = torch.randn(n, 9)
    return x, x @ price * 0.6 + (x[:, 0] * x[:, 1]) + 0.1 * torch.randn(n)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(9, 48), nn.Linear(9, 48), nn.Linear(48, 1)

    def forward(self, x):
        return self.out(self.a(x) * torch.sigmoid(self.b(x)))


model = Gated()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y = flats(64)
    pred = model(x)
    loss = ((pred - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        true = ((pred.detach().squeeze(1) - y) ** 2).mean().item()
        print(step, loss.item(), "error per flat", true, "variance of y", y.var().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
