"""A convolutional net in float16 autocast that names birds by their spectrograms. FAULT from step 0 on, seen when the scale has reached the edge of float16: the
GradScaler's growth_interval is 2 (2000 by default); the scale doubles after two good steps, overflows, is halved, so that each third step is skipped for good.
Without Rangewatch: loss 2.10 to 0.04 at the end; the scale goes to and fro between 131,072 and 1,048,576, 55 of 200 steps are skipped (1 by step 20, 8 by step 40).
Cause: loss_scale. Step: from the first skips to the end, a state. Right: growth interval / scale. Wrong: lower the learning rate, mask."""
EXPECT = {"cause": ["loss_scale"], "step": [0, 199], "place": None, "rank": 0,
          "right": "(?i)growth|interval|scale", "wrong": ["[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2115)
torch.set_num_threads(1)
songs = torch.randn(8, 1, 12, 8)


def spectrograms(n):
    y = torch.randint(0, 8, (n,))
    x = 0.8 * torch.randn(n, 1, 12, 24)
    for i, start in enumerate(torch.randint(0, 16, (n,)).tolist()):
        x[i, :, :, start:start + 8] += songs[y[i]]
    return x, y


bird = nn.Sequential(nn.Conv2d(1, 24, (12, 5)), nn.Flatten(2), nn.GroupNorm(4, 24), nn.SiLU(), nn.Conv1d(24, 48, 5), nn.SiLU(),
                     nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(48, 8))
optimizer = torch.optim.AdamW(bird.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
handle = rangewatch.attach(bird, optimizer, scaler=scaler)
skipped = 0
for step in range(200):
    x, y = spectrograms(16)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(bird(x).float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "scale", scaler.get_scale(), "skipped", skipped, flush=True)
    handle.log(loss=loss.item())
handle.detach()
