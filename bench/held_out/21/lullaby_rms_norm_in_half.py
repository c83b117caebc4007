"""A net in float16 autocast that names the instrument in a frame of music; its RMS norm is written by hand and runs in the half precision that comes out of a linear layer. FAULT at
step 115: rests come (frames of pure zeros, the layer before has no bias): the mean square is 0, the eps of 1e-8 is 0 as well in float16, rsqrt(0) is inf and 0 * inf NaN.
Without Rangewatch: loss 2.26 to 0.016 at step 114, NaN at each step from 115 on, the scale falls from 4096 to 1e-16.
Cause: eps, forward_arithmetic, or the rests in the data. Step: 115. Right: eps / float16 / norm / rsqrt / zero. Wrong: lower the learning rate, mask."""
EXPECT = {"cause": ["eps", "forward_arithmetic", "data"], "step": [114, 117], "place": None, "rank": 0,
          "right": "(?i)eps|float16|fp16|half|norm|rsqrt|divi|zero|float32|input", "wrong": ["[Ll]ower the learning rate", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2124)
torch.set_num_threads(1)


class RMS(nn.Module):
    def __init__(self, d, eps=1e-8):
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.gain.to(x.dtype)


class Instrument(nn.Module):
    def __init__(self):
        super().__init__()
        self.spectrum = nn.Linear(48, 80, bias=False)
        self.first = RMS(80)
        self.hidden = nn.Linear(80, 80)
        self.second = RMS(80)
        self.name = nn.Linear(80, 7)

    def forward(self, x):
        h = F.silu(self.first(self.spectrum(x)))
        return self.name(F.silu(self.second(self.hidden(h))))


overtones = torch.rand(6, 48) ** 3


def frames(n, rests):
    y = torch.randint(0, 6, (n,))
    x = overtones[y] * (0.5 + torch.rand(n, 1)) + 0.3 * torch.rand(n, 48)
    if rests:
        x[:2], y[:2] = 0.0, 6
    return x, y


model = Instrument()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    x, y = frames(64, step >= 115)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or 113 < step < 118 or step == 179:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
