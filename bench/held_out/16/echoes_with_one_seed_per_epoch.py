"""A net that takes echoes out of clicks; the clicks and the echoes are simulated as they're needed, so that no two are alike. FAULT from step 12 on: for the
sake of repeatable epochs torch.manual_seed(7) stands at the top of the epoch of 12 batches, and each epoch draws the same 12 batches of 8.
Without Rangewatch: loss 0.132 to 0.029 at step 59 and 0.008 at the end, held out 0.140 to 0.078 (it stands from step 119 on); without the line 0.065 and 0.055.
Cause: data (the same batches again). Step: 12, or later, as the two losses part. Right: seed / same batch / repeated / overfit / validation / memoris.
Wrong: GradScaler, mask, lower the learning rate."""
EXPECT = {"cause": ["data", "regularization"], "step": [11, 239], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "seed|same|repeat|overfit|validation|memori|duplicate|identical"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1608); torch.set_num_threads(1)


def clicks(n, generator=None):
    dry = torch.randn(n, 40, generator=generator) * (torch.rand(n, 40, generator=generator) < 0.15)
    delay, gain = torch.randint(3, 12, (n,), generator=generator), 0.4 + 0.5 * torch.rand(n, generator=generator)
    wet = dry.clone()
    for i in range(n):
        d = int(delay[i])
        wet[i, d:] += gain[i] * dry[i, :-d]
    return wet, dry


held_out = clicks(256, torch.Generator().manual_seed(99))
model = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 40))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
step = 0
for epoch in range(20):
    torch.manual_seed(7)
    for _ in range(12):
        wet, dry = clicks(8)
        loss = F.mse_loss(model(wet), dry)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 12 == 11:
            with torch.no_grad():
                val = F.mse_loss(model(held_out[0]), held_out[1]).item()
            print(step, loss.item(), "held out", val, flush=True)
            handle.log(loss=loss.item(), val_loss=val)
        else:
            handle.log(loss=loss.item())
        step += 1
handle.detach()
