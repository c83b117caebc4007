"""Counts of photons: the net predicts a log rate, the log of the exposure is added, and a module takes exp of it in float16. FAULT at step 125: the
exposures get longer from step to step (a curriculum), and exp of more than 11.09 is inf in float16.
Without Rangewatch: loss 0.097 to 0.0001 at step 124, inf at step 125, NaN from step 126 on.
Variant of: fp16_exponential_of_a_growing_value.
Cause: forward_arithmetic. Place: rate. Right: exp / float32 / float16 / bfloat16 / overflow / clamp. Wrong: lower the learning rate, mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [100, 127], "place": ".*rate.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask"],
          "right": "exp|float32|float16|bfloat16|fp16|fp32|overflow|clamp|range"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1207); torch.set_num_threads(1)


class Rate(nn.Module):
    def forward(self, log_rate):
        return log_rate.half().exp()


class Photons(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 1))
        self.rate = Rate()

    def forward(self, x, log_exposure):
        return self.rate(self.net(x).squeeze(1) + log_exposure)


star = torch.randn(6) / 6
model = Photons()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x = torch.randn(64, 6)
    log_exposure = 3 + 0.06 * step + 0.1 * torch.randn(64)
    count = torch.poisson((torch.tanh(x @ star) + log_exposure).exp())
    loss = (torch.log1p(model(x, log_exposure).float()) - torch.log1p(count)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 110 <= step < 135 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
