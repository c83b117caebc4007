"""HEALTHY: float16 autocast with a GradScaler that begins at 2**24: in the first steps the gradients overflow, the scaler leaves these steps out and halves its scale until it fits,
then it doubles each 60 good steps and halves again where it was too much. That is its way of searching.
Without Rangewatch: 11 steps are left out in the first 25, the scale is 8192 then and 65536 at the end; loss 10.2 to 0.054.
Nothing is wrong: a few skipped steps at the start and one now and then."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2244); torch.set_num_threads(1)


class Price(nn.Module):
    def __init__(self):
        super().__init__()
        self.town = nn.Embedding(30, 16)
        self.deep = nn.Sequential(nn.Linear(26, 128), nn.GELU(), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 1))
        self.wide = nn.Linear(10, 1)

    def forward(self, town, facts):
        return (self.deep(torch.cat((self.town(town), facts), 1)) + self.wide(facts))[:, 0]


height, effect = torch.randn(30), torch.randn(10)
model = Price()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=60)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
skipped = 0
for step in range(240):
    town, facts = torch.randint(0, 30, (64,)), torch.randn(64, 10)
    y = height[town] + facts @ effect + facts[:, 0] * height[town]
    with torch.autocast("cpu", torch.float16):
        out = model(town, facts)
    loss = F.mse_loss(out.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < before
    handle.log(loss=loss.item())
    if step % 25 == 0 or step == 239:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped so far", skipped, flush=True)
handle.detach()
