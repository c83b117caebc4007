"""An LSTM that forecasts the next day's return from twenty days of open, high, low, close and volume. FAULT from step 0: the inputs are not scaled,
prices are in the thousands and volumes in the millions: every gate is at 0 or 1 and every cell at its bound, the hidden state is the same for each
row, and what goes back through the gates is exactly 0. Without Rangewatch: loss about 0.95 all along, the variance of the target; the spread of
what it says is 0 or 1e-8; the gradient of the first layer is exactly 0 at every step.
Report: mukul-rathi/deep-learning-tutorials#2 (LSTM sigmoid and tanh saturated), jinglescode/time-series-forecasting-tensorflowjs#9 (a flat line),
nasa/prog_models#334.
Cause: data (its range), or units that are saturated. Place: the input, or the LSTM. Right: scale / normalise / input / saturated. Wrong: lower the
learning rate, mask, GradScaler."""
EXPECT = {"cause": ["data", "dead_units"], "step": [0, 60], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "bfloat16"],
          "right": "[Ss]cale|[Nn]ormali|input|batch|[Ss]aturat|standardi"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(519); torch.set_num_threads(1)
DAYS = 20


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(5, 48, num_layers=2, batch_first=True), nn.Linear(48, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1]).squeeze(-1)


def batch(n=48):
    trend = 0.02 * torch.randn(n, 1)
    returns = trend + 0.02 * torch.randn(n, DAYS + 1)
    close = 3000 * torch.exp(returns.cumsum(1))
    past = close[:, :-1]
    noise = 1 + 0.01 * torch.rand(n, DAYS, 3)
    x = torch.stack([past * noise[..., 0], past * noise[..., 1] * 1.01, past / noise[..., 2], past, 2e6 * (1 + torch.rand(n, DAYS))], -1)
    return x, trend.squeeze(1) * 50


model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, y = batch()
    said = model(x)
    loss = F.mse_loss(said, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "variance", y.var().item(), "spread", said.std().item(), model.rnn.weight_ih_l0.grad.abs().max().item(),
              model.rnn.weight_ih_l1.grad.abs().max().item(), flush=True)
handle.detach()
