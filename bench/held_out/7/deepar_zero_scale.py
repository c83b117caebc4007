"""A DeepAR-like GRU that forecasts sales; each series is divided by its mean absolute value over the context window, without a floor. FAULT at step
160: a product that has not been sold yet is in the batch, its context is all zeros: 0/0 is NaN at the network's input, and then everywhere.
Without Rangewatch: loss 0.63 to -1.68 at step 159, NaN at step 160 and ever after.
Report: sktime/pytorch-forecasting#987 (scale 0, division by 0), awslabs/gluonts#2885 (default_scale=0), kdgutier/esrnn_torch#5.
Cause: forward_arithmetic (or data). Step: 160. Right: division by zero / scale / eps / clamp / input. Wrong: learning rate, mask, GradScaler."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [160, 161], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "GradScaler"],
          "right": "divi|0 ?/ ?0|zero|eps|clamp|scal|input|batch|data"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(702); torch.set_num_threads(1)
PRODUCTS, CONTEXT, AHEAD = 200, 24, 8
level = torch.exp(torch.randn(PRODUCTS) * 1.5 + 2)
phase = torch.rand(PRODUCTS) * 6.28


def windows(products):
    start = torch.randint(0, 1000, (len(products), 1))
    t = start + torch.arange(CONTEXT + AHEAD)
    sales = level[products, None] * (1.2 + torch.sin(t * 0.52 + phase[products, None]) + 0.1 * torch.randn(len(products), CONTEXT + AHEAD))
    return sales.clamp_min(0)


class DeepAR(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 40, batch_first=True)
        self.loc = nn.Linear(40, 1)
        self.spread = nn.Linear(40, 1)

    def forward(self, sales):
        scale = sales[:, :CONTEXT].abs().mean(1, keepdim=True)
        y = sales / scale
        h, _ = self.rnn(y[:, :-1, None])
        loc, spread = self.loc(h).squeeze(-1), nn.functional.softplus(self.spread(h)).squeeze(-1) + 1e-3
        return ((y[:, 1:] - loc) ** 2 / (2 * spread ** 2) + spread.log()).mean()


model = DeepAR()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    sales = windows(torch.randint(0, PRODUCTS, (32,)))
    if step == 160:
        sales[3, :CONTEXT] = 0  # launched next week
    loss = model(sales)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    if step % 40 == 0 or 158 < step < 163:
        print(step, loss.item(), flush=True)
handle.detach()
