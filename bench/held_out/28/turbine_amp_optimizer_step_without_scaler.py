"""An MLP with layer norms that foretells the power of a wind turbine, fp16 autocast, SGD. FAULT from the start: the loss is scaled with scaler.scale(loss), but the step is
`optimizer.step()`: `scaler.step(optimizer)` and the unscale are missing, the gradients are 1024 times too large.
Without Rangewatch: loss 0.16 at step 0, 1.6e6 at step 1, NaN from step 2 to the end.
Cause: loss_scale. Step: 0. Right: scaler.step / unscale. Wrong: attention mask, bad data."""
EXPECT = {"cause": ["loss_scale", "learning_rate"], "step": [0, 10], "place": None, "rank": None,
          "right": "(?i)unscale|scaler|loss.?scale", "wrong": ["attention mask", "(?i)all_reduce", "(?i)log of (0|zero)"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1888); torch.set_num_threads(1)


def hours(n):
    x = torch.randn(n, 7)
    wind = 8 + 3 * x[:, 0]
    power = torch.sigmoid((wind - 9) * 0.8) * (1 + 0.2 * torch.tanh(x[:, 1] * x[:, 2]))
    return x, power[:, None]


class Turbine(nn.Module):
    def __init__(self):
        super().__init__()
        self.block1 = nn.Sequential(nn.Linear(7, 64), nn.LayerNorm(64), nn.GELU())
        self.block2 = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())
        self.power = nn.Linear(64, 1)

    def forward(self, x):
        return self.power(self.block2(self.block1(x)))


net = Turbine()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
handle = rangewatch.attach(net, optimizer, scaler=scaler)
for step in range(200):
    x, y = hours(64)
    with torch.autocast("cpu", dtype=torch.float16):
        pred = net(x)
    loss = nn.functional.mse_loss(pred.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    optimizer.step()
    if step % 20 == 0 or step < 6:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
