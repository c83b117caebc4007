"""Ten residual steps without a norm (one at the end) for the spectrum of the sea, in float16 autocast with a GradScaler; the stream is asked to stay wide.
FAULT about step 86: the stream has grown from 3 to beyond 65504, inf in float16; then the scaler skips most steps, and the stream cannot shrink.
Without Rangewatch: loss 0.75 to 0.31 at step 85, where the largest of the stream is 38,336 (51 at step 40, 9,376 at step 80); NaN at step 86 with inf in
the stream, now and then finite to step 94, NaN to the end; the scale falls from 256 to 9e-38.
Cause: forward_arithmetic. Step: 86 (growth from 60 on). Right: float16 / overflow / 65504 / norm. Wrong: mask, NaN in the input."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [60, 110], "place": None, "rank": 0,
          "wrong": ["attention mask", "NaN in the input"],
          "right": "float16|fp16|half|overflow|65504|residual|norm|bfloat16"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1512); torch.set_num_threads(1)


class Step(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, h):
        return h + self.out(F.relu(self.mix(h))).to(h.dtype)


class RoughSea(nn.Module):
    """The spectrum of the sea in six hours from 32 buoys; ten residual steps without a norm, one norm at the end.
    The stream is asked to stay wide (as in VICReg), by the logarithm of its spread."""
    def __init__(self, width=48, depth=10):
        super().__init__()
        self.start = nn.Linear(32, width)
        self.steps = nn.Sequential(*[Step(width) for _ in range(depth)])
        self.norm, self.spectrum = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, x):
        h = self.steps(self.start(x))
        self.largest, self.spread = h.abs().max().item(), h.float().std(0).mean()
        return self.spectrum(self.norm(h))


mix1, mix2 = torch.randn(32, 32) / 32 ** 0.5, torch.randn(32, 16) / 32 ** 0.5


def buoys(n):
    x = torch.randn(n, 32)
    return x, torch.sin(2 * x @ mix1) @ mix2


model = RoughSea()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(220):
    x, y = buoys(96)
    with torch.autocast("cpu", torch.float16):
        out = model(x)
    loss = F.mse_loss(out.float(), y) - 0.02 * model.spread.log()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or 80 < step < 95 or step == 219:
        print(step, loss.item(), "largest in the stream", model.largest, "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
