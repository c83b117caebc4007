"""HEALTHY. A net in float16 autocast that tells ripe wheat from green; the GradScaler begins at 2**40 and grows every 30 steps: in the first steps and then
now and again the scaled gradients overflow, the step is skipped and the scale is halved. That is how it finds its place; the training is well.
Without Rangewatch: 21 steps are skipped at the start and 4 later on; loss 0.71 to 0.09 at the end, the scale goes from 1.1e12 to 5.2e5 and is between
2.6e5 and 2.1e6 from then on."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1627); torch.set_num_threads(1)
ripe = torch.randn(20)


def fields(n):
    y = (torch.rand(n) < 0.5).float()
    return torch.randn(n, 20) + 0.4 * (2 * y[:, None] - 1) * ripe, y


model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 40, growth_interval=30)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
skipped = 0
for step in range(220):
    x, y = fields(64)
    with torch.autocast("cpu", torch.float16):
        logits = model(x)
    loss = F.binary_cross_entropy_with_logits(logits[:, 0].float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped so far", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
