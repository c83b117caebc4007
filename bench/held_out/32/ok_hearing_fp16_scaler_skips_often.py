"""A dilated convnet tells five tones in noise under float16 autocast, Adamax, with a GradScaler that begins at 2**30 and doubles every 15 steps.
HEALTHY: the first steps and one step each few dozen overflow, are skipped and halve the scale: that is how a scaler finds its scale; the scaled gradients are inf there and no weight ever is.
Without Rangewatch: loss 1.86 to 0.013; 13 of the first 20 steps skipped, 23 in all."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(423); torch.set_num_threads(1)
hertz = torch.tensor([2.0, 3.5, 5.0, 7.0, 9.5])


def tones(n):
    y = torch.randint(0, 5, (n,))
    x = torch.sin(6.28 * hertz[y][:, None] * torch.linspace(0, 1, 48) + 6.28 * torch.rand(n, 1))
    return (x + 0.5 * torch.randn(n, 48))[:, None], y


class Ear(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Conv1d(1, 24, 5, padding=2)
        self.d2, self.d4 = nn.Conv1d(24, 24, 3, padding=2, dilation=2), nn.Conv1d(24, 24, 3, padding=4, dilation=4)
        self.head = nn.Linear(24, 5)

    def forward(self, x):
        h = F.relu(self.inp(x))
        h = h + F.relu(self.d2(h))
        h = h + F.relu(self.d4(h))
        return self.head(h.amax(2))


model = Ear()
optimizer = torch.optim.Adamax(model.parameters(), lr=6e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 30, growth_interval=15)
handle = rangewatch.attach(model, optimizer)
skipped = 0
for step in range(200):
    x, y = tones(32)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped so far", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
