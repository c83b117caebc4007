"""A recurrent net that forecasts the air pressure in pascals; its last bias begins at 101325. FAULT at step 100: the machine is changed, and the
weights come back from a checkpoint that was saved in float16 to spare disk: 101325 is above 65504, so the bias is inf.
Without Rangewatch: loss 1.14 to 0.0045 at step 99, inf at step 100 (the bias is inf, and NaN after its update), NaN from step 101 on.
Cause: weight (inf in what was loaded; forward_arithmetic, the overflow of float16, would do). Step: 100. Place: pressure.bias. Right: inf / checkpoint /
load / float16 / weight. Wrong: lower the learning rate, mask."""
EXPECT = {"cause": ["weight", "forward_arithmetic"], "step": [99, 101], "place": "pressure(\\.bias)?", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "input (data )?contains"],
          "right": "inf|checkpoint|load|float16|fp16|weight|bias"}
import io
import torch
from torch import nn
import rangewatch

torch.manual_seed(1605); torch.set_num_threads(1)


class Barometer(nn.Module):
    def __init__(self):
        super().__init__()
        self.past = nn.LSTM(1, 24, batch_first=True)
        self.pressure = nn.Linear(24, 1)
        with torch.no_grad():
            self.pressure.weight.mul_(500.0)
            self.pressure.bias.fill_(101325.0)

    def forward(self, x):
        return self.pressure(self.past((x - 101325.0)[..., None] / 1000)[0][:, -1])[:, 0]


def weather(n):
    hour = torch.arange(25.0)
    period, phase = 18 + 20 * torch.rand(n, 1), 6.2832 * torch.rand(n, 1)
    air = 101325 + 1500 * torch.sin(6.2832 * hour / period + phase) + 30 * torch.randn(n, 25)
    return air[:, :24], air[:, 24]


model = Barometer()
optimizer = torch.optim.Adam([{"params": model.past.parameters(), "lr": 5e-3}, {"params": model.pressure.parameters(), "lr": 1.0}])
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    if step == 100:
        disk = io.BytesIO()
        torch.save({name: value.half() for name, value in model.state_dict().items()}, disk)
        disk.seek(0)
        model.load_state_dict(torch.load(disk))
    x, y = weather(64)
    loss = (((model(x) - y) / 1000) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 103 or step == 179:
        print(step, loss.item(), "bias", model.pressure.bias.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
