"""An LSTM that forecasts waves. FAULT before step 150: the highest bit of the exponent of one recurrent weight (float32) flips, as by faulty memory:
0.19 becomes 6.5e37. tanh and sigmoid saturate, so that all stays finite, the loss quadruples and training goes on.
Without Rangewatch: loss 0.48 to 0.026 at step 149, 0.101 at step 150, 0.020 at the end; the weight is 6.485e37 from step 150 to the end.
Report: arXiv 2102.11245 (Silent Data Corruptions at Scale), pytorchfi/pytorchfi#39 (injects such flips into weights on purpose: a loose relative).
Cause: weight. Step: 150 (149 if it is said where it was last seen well). Place: lstm.weight_hh_l0. Right: hardware / checkpoint. Wrong: learning
rate, GradScaler, mask."""
EXPECT = {"cause": ["weight"], "step": [149, 151], "place": r".*lstm\.weight_hh_l0", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "checkpoint|hardware|memory|ECC|weight|restore"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(610); torch.set_num_threads(1)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def batch(n=32):
    phase, speed = 6.28 * torch.rand(n, 1), 0.2 + 0.3 * torch.rand(n, 1)
    t = torch.arange(28)
    y = torch.sin(phase + speed * t) + 0.05 * torch.randn(n, 28)
    return y[:, :24, None], y[:, 24:]


model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    if step == 150:
        with torch.no_grad():  # the highest bit of the exponent of one float32
            bits = model.lstm.weight_hh_l0.view(torch.int32)
            print("before", model.lstm.weight_hh_l0[70, 11].item())
            bits[70, 11] ^= 1 << 30
            print("after", model.lstm.weight_hh_l0[70, 11].item())
    x, y = batch()
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (149, 150, 151, 239):
        print(step, loss.item(), model.lstm.weight_hh_l0.abs().max().item(), flush=True)
handle.detach()
