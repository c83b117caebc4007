"""Healthy: a net that sorts kinds of clouds by their radar profile, float16 autocast. Odd: the scale begins at 2 ** 30, so the GradScaler skips the first
steps while it halves its way down to what fits; this is how it is meant to begin. Without Rangewatch: some 13 steps skipped, the scale stands at 2 ** 17 from
step 20 on; loss 1.61 to 0.005."""
EXPECT = {"healthy": True, "cause": [], "step": [0, 0], "place": None, "rank": 0, "wrong": [], "right": ""}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1933); torch.set_num_threads(1)
profile = torch.randn(5, 32).cumsum(1) / 4
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 30)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(180):
    y = torch.randint(0, 5, (48,))
    x = profile[y] * (0.6 + 0.8 * torch.rand(48, 1)) + 0.5 * torch.randn(48, 32)
    with torch.autocast("cpu", torch.float16):
        logits = model(x)
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 179:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
