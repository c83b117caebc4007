"""HEALTHY: a net for the colour of stars in float16 autocast. The GradScaler begins at 2 to the 30; the first updates overflow and are skipped, and it halves
the scale until it fits, as is meant. Then the loss falls.
Without Rangewatch: 15 updates are skipped, the scale stays at 32768; loss 1.0 at step 15, 0.00063 at the end.
Right: nothing above info."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2020); torch.set_num_threads(1)
bands = torch.linspace(0.3, 1.2, 20)


def stars(n):
    heat = 0.4 + 1.2 * torch.rand(n, 1)
    light = bands**-3 / (torch.exp(1.4 / (bands * heat)) - 1)
    return light / light.mean(1, keepdim=True) + 0.03 * torch.randn(n, 20), heat


model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    x, heat = stars(64)
    with torch.autocast("cpu", torch.float16):
        guess = model(x)
    loss = F.mse_loss(guess.float(), heat)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step < 20 or step == 199:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
