"""A net over profiles of temperature and salt that foretells the depth of the mixed layer (Adamax). FAULT at step 130: one profile of the batch holds the fill
value of its netCDF file, 9.97e36, at a depth that was not measured: the squared error is inf, the gradients too, and the weights are NaN after that step.
Without Rangewatch: loss 0.23 to 0.00012 at step 129, inf at step 130, NaN from step 131.
Cause: data or forward_arithmetic. Step: 130. Right: input / data / value / fill. Wrong: GradScaler, attention mask, learning rate."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [129, 132], "place": None, "rank": None,
          "right": "(?i)data|input|batch|sample|value|outlier|overflow|range", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2719); torch.set_num_threads(1)
depth = torch.linspace(0, 1, 30)
FILL = 9.969209968386869e36


def cruise(n, number):
    mixed = 0.1 + 0.7 * torch.rand(n, 1)
    fall = torch.sigmoid((depth - mixed) * 25)
    warm, salt = 1.5 * (1 - fall) + 0.1 * torch.randn(n, 30), fall - 0.3 + 0.1 * torch.randn(n, 30)
    profile = torch.stack((warm, salt), 1)
    if number == 13:
        profile[3, 1, 27] = FILL
    return profile, mixed


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv1d(2, 24, 5, padding=2), nn.Conv1d(24, 24, 5, stride=2)
        self.depth = nn.Linear(24 * 13, 1)

    def forward(self, x):
        x = nn.functional.mish(self.a(x))
        x = nn.functional.mish(self.b(x))
        return self.depth(x.flatten(1))


net = Mixed()
optimizer = torch.optim.Adamax(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    x, y = cruise(40, number=step // 10 if step % 10 == 0 else 0)
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (129, 130, 131, 199):
        print(step, loss.item(), "largest", x.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
