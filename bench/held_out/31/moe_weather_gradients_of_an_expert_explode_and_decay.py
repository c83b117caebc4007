"""A hard-routed mixture of five small experts forecasts rain for five regions (SGD); each example's loss is weighted by 1 / the running share of its region. FAULT at step 150: the running share of region 3 is reset to 0 (its counter was renamed) with
only 1e-3 for a floor: the weight is 1000 at first, then falls as the average fills up again: the gradients of expert 3 explode and decay, its weights are far off.
Without Rangewatch: loss 0.58 to 0.08 at step 149; 26.6 at 150, 3562 at 152, 3.5e5 at 155, 376 at 180, 43.5 at 259; gradient of expert 3 0.06, then 57.6, 5244 at 155, 7 at the end.
Cause: forward_arithmetic (division by nearly zero in the loss's weight). Step: 150. Right: weight of the loss / division / clip / floor. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "clip"], "step": [149, 155], "place": r".*experts\.3.*", "rank": None,
          "right": "(?i)clip|divi|eps|clamp|weight|loss|explod|spike", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(121); torch.set_num_threads(1)
E, D = 5, 8


class Weather(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(D, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1)) for _ in range(E))

    def forward(self, x, region):
        each = torch.cat([e(x) for e in self.experts], 1)
        return each.gather(1, region[:, None])[:, 0]


truth = torch.randn(E, D) / 2
net = Weather()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
share = torch.full((E,), 1 / E)
handle = rangewatch.attach(net, optimizer)
for step in range(260):
    if step == 150:
        share[3] = 0.0
    region, x = torch.randint(0, E, (80,)), torch.randn(80, D)
    y = (x * truth[region]).sum(1).tanh()
    each = (net(x, region) - y).square()
    loss = (each / (E * share[region] + 1e-3)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    share = 0.98 * share + 0.02 * torch.bincount(region, minlength=E) / 80
    if step % 20 == 0 or 148 < step < 156 or step == 259:
        print(step, loss.item(), "plain", each.mean().item(), "grad of expert 3", net.experts[3][4].weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
