"""A net for fraud in payments takes log1p of the amounts in its forward. FAULT at step 105: refunds come into the data, amounts below -1, and their
logarithm is NaN.
Without Rangewatch: loss 0.70 to 0.34 at step 104, NaN from step 105 on.
Variant of: log_of_negative_values (here log1p of an input, in a classifier of a table).
Cause: forward_arithmetic (or data). Step: 105. Right: log / negative / clamp. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [104, 108], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "log|negative|clamp|below"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1406); torch.set_num_threads(1)


class Fraud(nn.Module):
    def __init__(self):
        super().__init__()
        self.land = nn.Embedding(20, 6)
        self.mix = nn.Sequential(nn.LayerNorm(10), nn.Linear(10, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU())
        self.fraud = nn.Linear(48, 1)

    def forward(self, land, amounts):
        return self.fraud(self.mix(torch.cat([self.land(land), torch.log1p(amounts)], 1)))[:, 0]


model = Fraud()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    land, amounts = torch.randint(0, 20, (64,)), torch.randn(64, 4).mul(1.5).add(3).exp()
    y = ((amounts[:, 0] > 3 * amounts[:, 1]) | (land % 7 == 0)).float()
    if step >= 105:
        back = torch.rand(64, 4) < 0.03
        amounts = torch.where(back, -amounts, amounts)
    loss = F.binary_cross_entropy_with_logits(model(land, amounts), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 103 < step < 108:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
