"""A temporal convolution net that forecasts a river's level from six gauges. FAULT at step 130: one window of the batch has a gap in the record, which the
reader gives as NaN. The windows are scaled with the mean and standard deviation of the training years, and nobody asks whether a reading is there.
Without Rangewatch: loss 0.64 at step 0 to 0.107 at step 129, NaN at step 130 (three readings of its batch are NaN) and at each step after it.
Report: zhouhaoyi/Informer2020#402 ("maybe there is nan in your data set"), circleAhn/TESLA-tf#1 (missing values in the own data set, loss NaN from the
start), zhouhaoyi/Informer2020#511.
Cause: data. Step: 130. Right: NaN in the input / batch / gap / missing. Wrong: lower the learning rate, GradScaler, mask of the attention."""
EXPECT = {"cause": ["data"], "step": [130, 131], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "input|batch|data|missing|NaN|non-finite"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1001); torch.set_num_threads(1)
GAUGES, DAYS = 6, 48


class TemporalNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv1d(GAUGES if i == 0 else 24, 24, 3, dilation=2 ** i) for i in range(4)])
        self.level = nn.Linear(24, 1)

    def forward(self, x):
        for i, conv in enumerate(self.blocks):
            h = F.gelu(conv(F.pad(x, (2 * 2 ** i, 0))))
            x = h if i == 0 else x + h
        return self.level(x[:, :, -1])[:, 0]


rain = torch.rand(4000).pow(6) * 5
flow = torch.zeros(4000, GAUGES)
for day in range(1, 4000):  # each gauge is a reservoir that empties at a speed of its own
    flow[day] = flow[day - 1] * torch.linspace(0.6, 0.95, GAUGES) + rain[day]
flow = flow + 0.1 * torch.randn(4000, GAUGES)
flow = (flow - flow.mean(0)) / flow.std(0)
flow[3900:3903, 2] = float("nan")  # the third gauge was under repair for three days

model = TemporalNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    start = torch.randint(0, 3800, (32,))
    if step == 130:
        start[11] = 3860  # the first window that holds the gap
    x = torch.stack([flow[s:s + DAYS].T for s in start])
    y = flow[start + DAYS, 5]
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (129, 130, 131, 239):
        print(step, loss.item(), "missing readings in the batch", int(x.isnan().sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
