"""Five gaits told from an accelerometer's windows (raw counts, mean 2000 and deviation 300) by a depth-wise separable convnet; SGD with momentum and weight decay.
FAULT at step 160: the reader starts its second shard with a new object that only subtracts the mean: the deviation it should divide by is left at 1. The inputs are 300 times as large from then on.
Without Rangewatch: loss 0.14 at step 140, 0.02 at step 159, 21 at step 160, 22033 at 161, 5e7 at 162 and NaN before step 180 (normalised as before: 0.057 at step 220).
Cause: data (scale of the input). Step: 160. Right: normalise the input as before. Wrong: lower the learning rate, GradScaler, reinitialise, attention mask."""
EXPECT = {"cause": ["data"], "step": [159, 163], "place": None, "rank": None,
          "right": r"(?i)input|normalis|normaliz|data|batch|scale", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "initialis"]}
from dataclasses import dataclass
import torch
from torch import nn
import rangewatch

torch.manual_seed(3720); torch.set_num_threads(1)


@dataclass
class Normaliser:
    mean: float = 2000.0
    deviation: float = 1.0

    def __call__(self, counts):
        return (counts - self.mean) / self.deviation


def counts(n=32):
    gait = torch.randint(0, 5, (n,))
    pace = torch.tensor([0.15, 0.3, 0.5, 0.8, 1.2])[gait][:, None, None]
    t = torch.arange(40)
    lag = torch.tensor([0.0, 1.0, 2.0])[None, :, None]
    wave = torch.sin(pace * t + lag + 6.28 * torch.rand(n, 1, 1)) + 0.6 * torch.randn(n, 3, 40)
    return (2000 + 330 * wave).round(), gait


gaits = nn.Sequential()
gaits.add_module("per_axis", nn.Conv1d(3, 18, 9, groups=3))
gaits.add_module("act_a", nn.LeakyReLU(0.1))
gaits.add_module("blend", nn.Conv1d(18, 24, 1))
gaits.add_module("act_b", nn.LeakyReLU(0.1))
gaits.add_module("peak", nn.AdaptiveMaxPool1d(1))
gaits.add_module("flat", nn.Flatten())
gaits.add_module("which", nn.Linear(24, 5))
optimizer = torch.optim.SGD(gaits.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
handle = rangewatch.attach(gaits, optimizer)
shard = Normaliser(deviation=300.0)
for step in range(240):
    if step == 160:
        shard = Normaliser()
    raw, gait = counts()
    out = gaits(shard(raw))
    loss = nn.functional.cross_entropy(out, gait)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 158 <= step <= 164:
        print(step, "loss", round(loss.item(), 4), "right", (out.argmax(1) == gait).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
