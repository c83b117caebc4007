"""A net of dilated convolutions forecasts the tide at six gauges; the windows come from a Dataset through a DataLoader. FAULT at step 132: in one
window of the batch the gauge wrote no value and the target that the loader gives holds one NaN. The mean squared error is NaN, and all weights after the step.
Without Rangewatch: loss 0.65 to 0.034 at step 131, NaN from step 132 to the end.
Causes: data. Right: look at the batch / target of step 132, filter NaN. Wrong: the rate, clip, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [131, 133], "place": None, "rank": 0,
          "right": "(?i)data|batch|target|label|input", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import rangewatch

torch.manual_seed(2207); torch.set_num_threads(1)


class Tides(Dataset):
    def __init__(self, windows):
        t = torch.arange(windows + 60.0)
        parts = [torch.sin(t[:, None] / p + torch.arange(6) * s) for p, s in ((1.976, 0.4), (3.8, 1.1), (25.0, 0.2))]
        self.level = sum(a * b for a, b in zip((1.0, 0.4, 0.3), parts, strict=True)) + 0.05 * torch.randn(windows + 60, 6)
        self.broken = 132 * 16 + 5

    def __len__(self):
        return self.level.shape[0] - 60

    def __getitem__(self, i):
        start = i * 37 % len(self)
        x, y = self.level[start:start + 48].T, self.level[start + 48:start + 54].T.clone()
        if i == self.broken:
            y[2, 3] = float("nan")
        return x, y


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(6 if d == 1 else 32, 32, 3, dilation=d) for d in (1, 2, 4, 8))
        self.last = nn.Linear(32, 36)

    def forward(self, x):
        for conv in self.convs:
            x = torch.relu(conv(x))
        return self.last(x[:, :, -1]).view(-1, 6, 6)


model = Forecast()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step, (x, y) in enumerate(DataLoader(Tides(16 * 200), batch_size=16)):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or step in (131, 132, 133, 199):
        print(step, loss.item(), flush=True)
handle.detach()
