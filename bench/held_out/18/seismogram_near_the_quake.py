"""A net picks the arrival of a wave in seismograms, float16 autocast without a scaler ("the gradients are of order one"). FAULT at step 131: one batch
comes from a station next to the epicentre, in counts instead of micrometres a second: 3e5 times as large. The first layer exceeds 65504 in float16: inf,
the loss is NaN, and the step is taken: all weights are NaN.
Without Rangewatch: loss 4.20 to 0.17 at step 130, NaN from step 131 to the end.
Cause: data (one batch) or forward_arithmetic. Step: 131. Right: input / normalise / outlier / overflow / float16 / GradScaler. Wrong: lower the rate,
mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [130, 132], "place": None, "rank": 0,
          "wrong": ["attention mask", "(?i)lower the learning rate"],
          "right": "(?i)input|batch|normali[sz]|outlier|overflow|float16|fp16|GradScaler|skip"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1804); torch.set_num_threads(1)


class Picker(nn.Module):
    def __init__(self):
        super().__init__()
        self.wave = nn.Conv1d(3, 16, 7, padding=3)
        self.context = nn.Conv1d(16, 16, 7, padding=3)
        self.pick = nn.Conv1d(16, 1, 1)

    def forward(self, x):
        h = F.relu(self.wave(x))
        return self.pick(F.relu(self.context(h)))[:, 0]


def records(n):
    arrival = torch.randint(10, 54, (n,))
    after = (torch.arange(64) >= arrival[:, None]).float()
    decay = torch.exp(-(torch.arange(64) - arrival[:, None]).clamp(min=0) / 20)
    return 0.2 * torch.randn(n, 3, 64) + (after * decay)[:, None] * torch.randn(n, 3, 64) * 1.5, arrival


model = Picker()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
handle = rangewatch.attach(model, optimizer)
for step in range(190):
    x, arrival = records(24)
    if step == 131:
        x = x * 3e5
    with torch.autocast("cpu", torch.float16):
        scores = model(x)
    loss = F.cross_entropy(scores.float(), arrival)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or 129 < step < 134 or step == 189:
        print(step, loss.item(), "largest input", x.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
