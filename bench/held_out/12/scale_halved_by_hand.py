"""Masked patches of weather maps in float16 autocast with a GradScaler. FAULT from step 100 on: a hook of a "scale schedule" calls
scaler.update(new_scale=scaler.get_scale() / 2) after each step; nothing had overflowed. After some steps gradients in float16 are 0, then all of them.
Without Rangewatch: loss 1.94 to 0.15 at step 99, 0.17 at step 130 (all gradients 0, scale 3e-5), 0.71 at step 140, 1.2 at the end.
Variant of: loss_scale_falls_at_every_step.
Cause: loss_scale. Step: from 100 on. Right: scale / GradScaler / update. Wrong: lower the learning rate, attention mask."""
EXPECT = {"cause": ["loss_scale"], "step": [99, 135], "place": None, "rank": None,
          "wrong": ["[Ll]ower the learning rate", "attention mask"],
          "right": "scale|GradScaler|update"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1212); torch.set_num_threads(1)


class MapNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(16, 48)
        self.place = nn.Parameter(0.02 * torch.randn(16, 48))
        self.mix = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.within = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))
        self.out = nn.Linear(48, 16)

    def forward(self, x):
        h = self.patch(x) + self.place
        h = h + self.mix(h.transpose(1, 2)).transpose(1, 2)
        return self.out(h + self.within(h))


def maps(n):
    phase = 6.283 * torch.rand(n, 3, 1, 1)
    i = torch.arange(16.0)
    field = torch.sin(0.4 * i[:, None] + phase[:, 0]) + torch.sin(0.3 * i + phase[:, 1]) + torch.sin(0.2 * (i + i[:, None]) + phase[:, 2])
    return field.view(n, 4, 4, 4, 4).transpose(2, 3).reshape(n, 16, 16)


model = MapNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(240):
    x = maps(32)
    seen = (torch.rand(32, 16, 1) > 0.3).float()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x * seen).float(), x)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    if step < 100:
        scaler.update()
    else:
        scaler.update(new_scale=scaler.get_scale() / 2)
    if step % 20 == 0 or step in (99, 110, 115, 125, 130, 135, 239):
        share = sum((p.grad == 0).sum().item() for p in model.parameters()) / sum(p.numel() for p in model.parameters())
        print(step, loss.item(), scaler.get_scale(), "zero gradients", round(share, 3), flush=True)
    handle.log(loss=loss.item())
handle.detach()
