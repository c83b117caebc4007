"""A net for the tide in float16 autocast. HEALTHY: the GradScaler starts at 4 million and skips the first six steps until the scale fits; later it tries a
doubling every 40 steps and now and then takes it back.
Seen: scale 2,097,152 after step 0, 65,536 from step 5 on, 131,072 to 262,144 later; loss 2.9 to 0.030."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1534); torch.set_num_threads(1)


class Tide(nn.Module):
    """The height of the tide from moon and sun; float16 autocast, a scaler that starts high and tries a doubling each 40 steps."""
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x)[:, 0]


def days(n):
    moon, sun = 6.2832 * torch.rand(n, 1), 6.2832 * torch.rand(n, 1)
    x = torch.cat((moon.sin(), moon.cos(), sun.sin(), sun.cos(), (2 * moon).sin(), (2 * moon).cos(), (moon - sun).sin(), (moon - sun).cos()), 1)
    return x, (2 * torch.cos(2 * moon) + torch.cos(2 * sun) + 0.5 * torch.sin(moon - sun))[:, 0] + 0.05 * torch.randn(n)


model = Tide()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=40)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(220):
    x, y = days(64)
    with torch.autocast("cpu", torch.float16):
        out = model(x)
    loss = F.mse_loss(out.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step < 8 or step == 219:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
