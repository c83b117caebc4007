"""A convolutional net finds fractures in X-rays of 14 bits (pixels of 0 to 16383, used raw: "the batch norm takes care of the scale"), float16 autocast
with a GradScaler. FAULT from the first step on, breaks later: the batch norm hides how large the filters before it are; without decay they grow with each
step of Adam, and so does the output of the first convolution, until it exceeds 65504 in float16: inf, and the batch norm of inf is NaN.
Without Rangewatch: the first convolution's largest output is 14,361 at step 0, 52,706 at step 20, 64,770 at step 41; loss 0.67 to 0.0028 at step 41, NaN
at step 42 for the first time and at nearly each step from 44 on; the scale falls from 512 to 1e-44.
Cause: forward_arithmetic (overflow), weight (growth), learning_rate or data (raw pixels). Step: 0 to the overflow. Right: float16 / overflow / normalise
the input / weight decay / growth. Wrong: attention mask, communication."""
EXPECT = {"cause": ["forward_arithmetic", "weight", "learning_rate", "data"], "step": [0, 60], "place": None, "rank": 0,
          "wrong": ["attention mask", "(?i)\\bnccl\\b"],
          "right": "(?i)float16|fp16|half|overflow|65504|normali[sz]|weight decay|grow|input|learning rate"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1824); torch.set_num_threads(1)
rows, columns = torch.meshgrid(torch.arange(18.0), torch.arange(18.0), indexing="ij")


def x_rays(n):
    broken = (torch.rand(n) < 0.5).float()
    bone = torch.exp(-((columns - 9 - torch.randn(n, 1, 1)) ** 2) / 12)
    gap = torch.exp(-((rows - 9 - 3 * torch.randn(n, 1, 1) - 0.5 * (columns - 9)) ** 2) / 2)
    picture = 1200 + 2200 * bone * (1 - 0.5 * gap * broken[:, None, None]) + 120 * torch.randn(n, 18, 18)
    return (4 * picture).clamp(0, 16383).round()[:, None], broken


model = nn.Sequential(
    nn.Conv2d(1, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 24, 3, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(216, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=6e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    x, broken = x_rays(24)
    with torch.autocast("cpu", torch.float16):
        logit = model(x)[:, 0]
    loss = F.binary_cross_entropy_with_logits(logit.float(), broken)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or 40 < step < 60 or step == 199:
        with torch.no_grad():
            largest = model[0](x).abs().max().item()
        print(step, loss.item(), "largest of the convolution", largest, "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
