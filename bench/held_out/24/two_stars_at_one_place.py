"""A net that lays out stars on a plane such that their distances are the given ones (a learnt multidimensional scaling); the distance is the root of the squared sum. FAULT at
step 112: two stars of a batch are the same one, their distance is exactly 0, the slope of the root there is inf, and inf times 0 is NaN.
Without Rangewatch: loss 1.02 to 0.20 at step 112 (sound there), NaN from step 113 on.
Cause: backward_arithmetic or eps; the doubled star (data) is fair. Step: 112. Right: sqrt / root / eps / zero / distance. Wrong: GradScaler, lower the rate, attention mask."""
EXPECT = {"cause": ["backward_arithmetic", "eps", "data"], "step": [111, 113], "place": None, "rank": 0,
          "right": "(?i)sqrt|root|eps|zero|distance|backward|gradient|norm", "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2430); torch.set_num_threads(1)


class Chart(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(10, 64), nn.Linear(64, 64), nn.Linear(64, 2)
        self.skip = nn.Linear(10, 2, bias=False)

    def forward(self, x):
        return self.skip(x) + self.c(torch.celu(self.b(torch.celu(self.a(x)))))


lift = torch.randn(2, 10)
chart = Chart()
optimizer = torch.optim.Adam(chart.parameters(), lr=2e-3)
handle = rangewatch.attach(chart, optimizer)
for step in range(180):
    spot = torch.randn(2, 40, 2)
    if step == 112:
        spot[1, 7] = spot[0, 7]
    given = (spot[0] - spot[1]).norm(dim=1)
    p, q = chart(torch.tanh(spot[0] @ lift)), chart(torch.tanh(spot[1] @ lift))
    distance = torch.sqrt(torch.sum((p - q) ** 2, 1))
    loss = torch.mean((distance - given).abs())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or 110 < step < 115 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
