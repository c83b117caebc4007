"""HEALTHY: a convolutional net in float16 autocast whose GradScaler begins at 2^24 and is set to grow every 40 steps: the first steps overflow and are skipped
until the scale fits, and each growth too far is one more skipped step. This is how a scaler works. Odd to a watcher: inf gradients, skipped steps.
Without Rangewatch: loss 2.12 to 0.014 at step 40 and about 0.001 later; eight steps are skipped, the scale ends at 2^20."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2343); torch.set_num_threads(1)
knots = torch.randn(8, 2, 12)


class Knot(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.name = nn.Linear(96, 8)

    def forward(self, x):
        return self.name(self.body(x.flatten(1)))


model = Knot()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=40)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
skipped = 0
for step in range(220):
    y = torch.randint(0, 8, (64,))
    x = knots[y] + 0.8 * torch.randn(64, 2, 12)
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
