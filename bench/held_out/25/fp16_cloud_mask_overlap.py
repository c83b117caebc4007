"""A patch net that marks clouds, in float16 autocast with a GradScaler, by an overlap (Dice) loss: 2 sum(pq) / (sum(p^2) + sum(q^2)), summed over the whole
batch of 8 pictures of 96 by 96 in float16. FAULT at step 100: the scenes of the rainy season are overcast; a sum exceeds 65504: inf.
Without Rangewatch: loss 0.42 to 0.12 at step 99, NaN from step 100 on; the scale falls from 256 to 2e-16 at the end, the weights stand.
Cause: forward_arithmetic. Step: 100. Right: float16 / overflow / sum in float32. Wrong: lower the rate, attention mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [99, 104], "place": None, "rank": 0,
          "right": "(?i)float16|fp16|half|overflow|65504|float32|inf", "wrong": ["[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2532); torch.set_num_threads(1)


def scenes(cover):
    rough = F.interpolate(torch.randn(8, 1, 12, 12), size=(96, 96), mode="bilinear")
    bar = torch.quantile(rough.flatten(1), 1 - cover, dim=1).view(8, 1, 1, 1)
    cloud = (rough > bar).float()
    return cloud + 0.5 * torch.randn(8, 1, 96, 96), cloud


class Overlap(nn.Module):
    def forward(self, logits, cloud):
        p, q = torch.sigmoid(logits), cloud.to(logits.dtype)
        return 1 - 2 * (p * q).sum() / ((p * p).sum() + (q * q).sum())


class Marker(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
        self.overlap = Overlap()

    def forward(self, x, cloud):
        return self.overlap(self.net(F.unfold(x, 8, stride=8).transpose(1, 2)), F.unfold(cloud, 8, stride=8).transpose(1, 2))


model = Marker()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(160):
    x, cloud = scenes(0.35 if step < 100 else 0.97)
    with torch.autocast("cpu", torch.float16):
        loss = model(x, cloud)
    optimizer.zero_grad()
    scaler.scale(loss.float()).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or 98 < step < 104 or step == 159:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
