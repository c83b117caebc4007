"""A net of gated linear units that guesses the price of used boats. FAULT at step 72: after the warmup the schedule hands over the factor of the rate
instead of the rate, and Adam goes on with a rate of 1.
Without Rangewatch: loss 1.33 to 0.21 at step 72, 1.8 at step 73, 2,078 at step 75, 3e6 to 5e7 later.
Cause: learning_rate. Step: 72. Right: lower the learning rate / schedule. Wrong: GradScaler, mask, data."""
EXPECT = {"cause": ["learning_rate"], "step": [71, 76], "place": None, "rank": 0,
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)skip the batch"],
          "right": "(?i)learning.?rate|\\blr\\b|schedul"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1923); torch.set_num_threads(1)
MAKERS, PEAK, WARMUP = 25, 5e-3, 72
fame = torch.randn(MAKERS)


class Boats(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker = nn.Embedding(MAKERS, 6)
        self.wide1, self.wide2, self.price = nn.Linear(10, 48), nn.Linear(24, 48), nn.Linear(24, 1)

    def forward(self, maker, facts):
        h = F.glu(self.wide1(torch.cat((self.maker(maker), facts), 1)))
        return self.price(F.glu(self.wide2(h)))[:, 0]


def boats(n):
    maker, facts = torch.randint(0, MAKERS, (n,)), torch.randn(n, 4)
    return maker, facts, 0.5 * fame[maker] + facts[:, 0] - 0.4 * facts[:, 1] * facts[:, 2] + 0.1 * torch.randn(n)


model = Boats()
optimizer = torch.optim.Adam(model.parameters(), lr=PEAK)
handle = rangewatch.attach(model, optimizer)
for step in range(160):
    factor = min(1.0, (step + 1) / WARMUP)
    optimizer.param_groups[0]["lr"] = PEAK * factor if step < WARMUP else factor
    maker, facts, price = boats(64)
    loss = F.mse_loss(model(maker, facts), price)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 70 < step < 76 or step == 159:
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
