"""A temporal net foretells the next eight hours of a tide gauge. FAULT at step 133: the gauge was out of order during two of the hours that are to be
foretold: the targets have NaN there, the inputs none.
Without Rangewatch: loss 0.33 to 0.028 at step 132; NaN at step 133, where the outputs are finite, and at each step after it.
Variant of: functions: nan_in_the_targets.
Cause: data. Step: 133. Right: target / label / data / batch / loss. Wrong: rate, GradScaler, attention mask, clip."""
EXPECT = {"cause": ["data"], "step": [132, 134], "place": None, "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "[Cc]lip the grad"],
          "right": "target|label|data|batch|sample"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1109); torch.set_num_threads(1)


class TideNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.past = nn.LSTM(1, 32, batch_first=True)
        self.hours = nn.Linear(32, 8)

    def forward(self, x):
        return self.hours(self.past(x[..., None])[0][:, -1])


def gauges(n):
    hour = torch.arange(32.0) + 400 * torch.rand(n, 1)
    tide = torch.sin(hour * 0.506) + 0.5 * torch.sin(hour * 0.262) + 0.05 * torch.randn(n, 32)
    return tide[:, :24], tide[:, 24:]


model = TideNet()
optimizer = torch.optim.NAdam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(230):
    x, y = gauges(32)
    if step == 133:
        y[20, 3:5] = float("nan")  # out of order
    loss = F.huber_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 131 < step < 136:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
