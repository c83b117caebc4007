"""A graph net that forecasts the demand for bicycles; the rate is a softplus written as torch.where(x > 20, x, log(1 + exp(x))). FAULT at step 150: counts
of a day of sixty times the usual demand, x is above 89 there: where takes the right branch and all of the forward pass that counts is finite, but in
the backward the other branch gives 0 * inf / inf, NaN.
Without Rangewatch: loss -0.60 to -2.76 at step 149, -50.7 (finite) at step 150 with a gradient norm of NaN and a largest rate of 445, NaN from step 151.
Report: pytorch/pytorch#17455 (log(1 + exp(x)) and a masked NaN gradient), tensorflow/tensorflow#2540.
Cause: backward_arithmetic. Step: 150. Right: exp / where / backward / softplus. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [150, 151], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "exp|where|gradient of|derivative|backward|softplus|clamp|overflow"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(809); torch.set_num_threads(1)
STATIONS = 12
busy = torch.rand(STATIONS) * 4 + 1
road = (torch.rand(STATIONS, STATIONS) < 0.3).float()
road = road / road.sum(1, keepdim=True).clamp(min=1)


class BikeDemand(nn.Module):  # a graph net with a gate over time that forecasts counts
    def __init__(self):
        super().__init__()
        self.inward, self.message = nn.Linear(6, 32), nn.Linear(32, 32)
        self.out = nn.Linear(32 + 6, 1)
        nn.init.constant_(self.out.bias, 1.0)

    def forward(self, past):
        h = torch.relu(self.inward(past))
        h = h + torch.relu(self.message(road @ h))
        x = self.out(torch.cat([h, past], -1)).squeeze(-1)
        return torch.where(x > 20, x, torch.log(1 + torch.exp(x)))  # "so that it does not overflow"


model = BikeDemand()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    hour = torch.rand(32, 1, 1) * 6.28
    level = busy[:, None] * (1.3 + torch.sin(hour + torch.arange(7) * 0.3))
    if step == 150:
        level[3] = level[3] * 60  # the day of the marathon
    counts = torch.poisson(level)
    rate = model(counts[..., :6])
    loss = (rate - counts[..., 6] * torch.log(rate + 1e-6)).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 20 == 0 or 148 < step < 152 or step == 219:
        print(step, loss.item(), "largest rate", rate.max().item(), "gradient norm", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
