"""A dilated conv net that foretells the tide. FAULT at step 109: a bit of the memory flips: bit 30, the highest of the exponent, of one weight of the third conv; 0.0x becomes
some 1e37.
Without Rangewatch: loss 0.43 to 0.015 at step 108, Inf at 109 (the weight is 0.014, then 4.8e36), NaN from 110.
Cause: hardware or weight. Step: 109. Place: the third conv. Right: bit / memory / hardware / weight. Wrong: GradScaler, lower the learning rate."""
EXPECT = {"cause": ["hardware", "weight"], "step": [108, 111], "place": "stack\\.4.*", "rank": 0,
          "right": "(?i)bit|memory|hardware|outside|overwrit|weight|ECC", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6118); torch.set_num_threads(1)
net = nn.Sequential()
net.stack = nn.Sequential(
    nn.Conv1d(1, 24, 3), nn.SiLU(), nn.Conv1d(24, 24, 3, dilation=2), nn.SiLU(), nn.Conv1d(24, 24, 3, dilation=4), nn.SiLU(),
    nn.Conv1d(24, 24, 3, dilation=8), nn.SiLU())
net.level = nn.Linear(24, 1)


def tide(n):
    t = 300 * torch.rand(n, 1) + torch.arange(48)
    level = torch.sin(t * 0.506) + 0.4 * torch.sin(t * 0.49 + 1) + 0.2 * torch.sin(t * 0.26)
    return level[:, None, :42] + 0.03 * torch.randn(n, 1, 42), level[:, 45:46]


def flip(weight, at, bit):
    weight.data.view(-1).view(torch.int32)[at] ^= 1 << bit


optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
handle = rangewatch.attach(net, optimizer)
for step in range(170):
    if step == 109:
        flip(net.stack[4].weight, at=743, bit=30)
        print("weight", net.stack[4].weight.view(-1)[743].item())
    x, y = tide(40)
    h = net.stack(x)
    loss = F.mse_loss(net.level(h[:, :, -1]), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (108, 109, 110, 111, 169):
        print(step, loss.item(), "weight", net.stack[4].weight.view(-1)[743].item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
