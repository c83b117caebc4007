"""A dilated net that fills gaps in records of a seismograph, float16 autocast with a GradScaler. FAULT at step 95: a hand-written schedule ("use the whole
range") sets the scale to twice its value after every step, scaler.update(new_scale=...), and so never lets it fall back; from some 18 steps on every
gradient is inf and every step is skipped.
Without Rangewatch: loss 0.126 to 0.015-0.045 at step 110; the scale is 2 ** 24 at step 110, no gradient is finite from step 112 on; 0.01 to 0.07, as the
weights stand.
Cause: loss_scale. Step: 95 to 125. Right: scale / scaler / update. Wrong: mask, lower the learning rate."""
EXPECT = {"cause": ["loss_scale"], "step": [94, 130], "place": None, "rank": 0,
          "wrong": ["(?i)attention mask", "(?i)lower the learning rate"],
          "right": "(?i)scale|overflow"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1919); torch.set_num_threads(1)
LENGTH = 72


def records(n):
    t = torch.arange(LENGTH) / LENGTH
    pitch, fade = 3 + 6 * torch.rand(n, 1), 1 + 3 * torch.rand(n, 1)
    return torch.sin(6.2832 * (pitch * t + torch.rand(n, 1))) * torch.exp(-fade * t)


def gaps(n):
    begin = torch.randint(0, LENGTH - 8, (n, 1))
    return ((torch.arange(LENGTH) >= begin) & (torch.arange(LENGTH) < begin + 8)).float()


model = nn.Sequential(nn.Conv1d(2, 20, 5, padding=2), nn.Hardswish(), nn.Conv1d(20, 20, 5, padding=4, dilation=2), nn.Hardswish(),
                      nn.Conv1d(20, 20, 5, padding=8, dilation=4), nn.Hardswish(), nn.Conv1d(20, 1, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    record, gap = records(16), gaps(16)
    with torch.autocast("cpu", torch.float16):
        filled = model(torch.stack((record * (1 - gap), gap), 1))[:, 0]
    loss = ((filled.float() - record).square() * gap).sum() / gap.sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    before = model[0].weight.grad.isfinite().all().item()
    if step < 95:
        scaler.update()
    else:
        scaler.update(new_scale=min(2.0 * scaler.get_scale(), 2.0 ** 40))
    if step % 20 == 0 or step in (94, 95, 110, 112, 114, 116, 199):
        print(step, loss.item(), "scale", scaler.get_scale(), "finite", before, flush=True)
    handle.log(loss=loss.item())
handle.detach()
