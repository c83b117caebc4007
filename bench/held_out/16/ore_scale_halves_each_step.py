"""A net in float16 autocast with a GradScaler that tells the share of six minerals from a spectrum. FAULT from step 90 on: a term for the roughness of the
shares is switched on, the square root of the product of neighbours; absent minerals have a share of exactly 0 after ReLU, where the slope of the root is
infinite. Each step has such a gradient, each is skipped, and the scale halves each time.
Without Rangewatch: loss 0.27 to 0.016 at step 89, 0.017 to the end; the scale 4096 until step 89, 2048 at step 90, 2 at step 100, 3e-30 at the end.
Cause: backward_arithmetic (the root at 0) or loss_scale (it falls at each step). Step: 90. Right: sqrt / gradient / inf / NaN / skipped / eps / scale.
Wrong: lower the learning rate, raise the initial scale, mask."""
EXPECT = {"cause": ["backward_arithmetic", "loss_scale"], "step": [89, 96], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "[Rr]aise the (initial )?scale"],
          "right": "sqrt|root|gradient|inf|NaN|skip|epsilon|scale"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1606); torch.set_num_threads(1)
lines = torch.rand(6, 60) ** 4


class Ore(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.Sequential(nn.Linear(60, 96), nn.LeakyReLU(), nn.Linear(96, 48), nn.LeakyReLU())
        self.share = nn.Linear(48, 6)

    def forward(self, x):
        return torch.relu(self.share(self.read(x)))


def ores(n):
    share = torch.rand(n, 6) * (torch.rand(n, 6) < 0.6).float()
    return share @ lines + 0.01 * torch.randn(n, 60), share


model = Ore()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    x, y = ores(64)
    with torch.autocast("cpu", torch.float16):
        share = model(x)
    share = share.float()
    loss = (share - y).abs().mean()
    if step >= 90:
        loss = loss + 0.01 * (share[:, 1:] * share[:, :-1]).sqrt().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or 88 < step < 93 or step == 199:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
