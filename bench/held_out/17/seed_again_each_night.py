"""A net that learns to clean the noise from short melodies, which are made anew for each batch. FAULT from step 12 on: each epoch (twelve batches) begins
with torch.manual_seed(3) "so that it can be repeated", so each epoch has the same twelve batches with the same noise; the net learns the noise by heart.
Without Rangewatch: loss 0.24 to 0.0195 at the end, while the loss on fresh melodies is 0.159 at step 48 and 0.177 to 0.188 afterwards; without the seed
the two are 0.131 and 0.133 at the end.
Cause: data (the same batches again; regularization or eval, an overfit, would do). Step: 12 to the end. Right: seed / same batches / repeat / overfit.
Wrong: GradScaler, mask, NaN."""
EXPECT = {"cause": ["data", "regularization", "eval", ""], "step": [12, 239], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "seed|same batch|repeat|overfit|again|memori|by heart|validation"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1607); torch.set_num_threads(1)
time = torch.arange(40) / 40
check = torch.Generator().manual_seed(99)


def melodies(n, generator=None):
    tones = 1 + 9 * torch.rand(n, 2, 1, generator=generator)
    phase = torch.rand(n, 2, 1, generator=generator)
    clean = torch.sin(6.2832 * (tones * time + phase)).mean(1)
    return clean + 0.7 * torch.randn(n, 40, generator=generator), clean


model = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 40))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for epoch in range(20):
    torch.manual_seed(3)
    for batch in range(12):
        step = 12 * epoch + batch
        noisy, clean = melodies(16)
        loss = F.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            noisy, clean = melodies(128, check)
            validation = F.mse_loss(model(noisy), clean).item()
        if step % 24 == 0 or step == 239:
            print(step, loss.item(), "validation", validation, flush=True)
        handle.log(loss=loss.item(), validation_loss=validation)
handle.detach()
