"""A critic that tells true handwriting strokes from drawn ones by the difference of its means (as in a WGAN), in float16 autocast with a GradScaler.
FAULT from the start: nothing holds its slope (no penalty, no clip of weights); its output doubles every few steps until it exceeds 65504 in float16.
Without Rangewatch: the largest output is 0.2, 3.3 at step 40, 30 at step 60, 409 at step 70, inf by step 80; loss NaN and the scale falls to 5e-41.
Cause: forward_arithmetic (overflow of float16), or weight, learning_rate, regularization (no penalty). Step: any up to the overflow.
Right: overflow / float16 / 65504 / penalty / grows. Wrong: mask."""
EXPECT = {"cause": ["forward_arithmetic", "weight", "learning_rate", "regularization"], "step": [10, 200], "place": None, "rank": 0,
          "wrong": ["attention mask"],
          "right": "(?i)overflow|float16|fp16|half|65504|penalty|grow|norm|bfloat16|float32|rate"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2023); torch.set_num_threads(1)
t = torch.linspace(0, 1, 25)


def strokes(n, true):
    bend = torch.randn(n, 1) if true else torch.randn(n, 1).sign()
    return torch.cat((t + 0.3 * bend * torch.sin(3.14 * t), t * t + 0.05 * torch.randn(n, 25)), 1) + (0.1 if true else 0.0)


critic = nn.Sequential(nn.Linear(50, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
optimizer = torch.optim.SGD(critic.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
handle = rangewatch.attach(critic, optimizer, scaler=scaler)
for step in range(220):
    with torch.autocast("cpu", torch.float16):
        true, drawn = critic(strokes(64, True)), critic(strokes(64, False))
    loss = drawn.float().mean() - true.float().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0 or step == 219:
        print(step, loss.item(), "largest output", true.abs().max().item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
