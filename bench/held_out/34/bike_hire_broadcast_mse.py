"""An MLP forecasts bike hire from eight features (RMSprop). FAULT from step 0: the prediction is (N, 1), the target (N,): their difference broadcasts to (N, N), every prediction
is pulled towards the mean of the batch. Nothing but the mean is learned.
Without Rangewatch: loss 4.6 to between 2.9 and 4.7 (the variance of the target), predictions spread by 0.04 (with the shapes right: 0.09, spread 1.7).
Cause: forward_arithmetic (wrong broadcasting). Step: 0 (can't be said closely). Right: shape / broadcast / squeeze. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": None, "place": None, "rank": None,
          "right": "(?i)shape|broadcast|squeez|unsqueeze|view", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(343); torch.set_num_threads(1)
effect = torch.randn(8)


def days(n):
    x = torch.randn(n, 8)
    hired = (x @ effect) + torch.tanh(x[:, 0] * x[:, 1]) + 0.1 * torch.randn(n)
    return x, hired


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 48)
        self.norm = nn.LayerNorm(48)
        self.hidden = nn.Linear(48, 48)
        self.out = nn.Linear(48, 1)

    def forward(self, x):
        h = nn.functional.elu(self.norm(self.inp(x)))
        return self.out(nn.functional.elu(self.hidden(h)))


model = Forecast()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x, y = days(64)
    pred = model(x)
    loss = ((pred - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 259:
        true = ((pred[:, 0] - y) ** 2).mean().item()
        print(step, loss.item(), "true mse", true, "spread of predictions", pred.std().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
