"""A transformer encoder over the legs of a flight that forecasts the fuel it burns. FAULT at step 140: in one row of a batch the loader gives NaN for a leg
(a gap in the file that pandas reads as NaN). One update, and all weights are NaN.
Without Rangewatch: loss 0.45 to 0.0024 at step 139, NaN from step 140 on.
Cause: data. Step: 140. Right: batch / input / data / loader. Wrong: lower the rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [139, 141], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "(?i)batch|input|data|loader|row"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2025); torch.set_num_threads(1)


class Flights(torch.utils.data.Dataset):
    """Six legs a flight: height, speed, wind, load, minutes."""
    def __init__(self, n):
        self.legs = torch.randn(n, 6, 5)
        h, v, w, m, t = self.legs.unbind(2)
        self.fuel = ((1 - 0.4 * h + 0.3 * v * v - 0.2 * w * v + 0.3 * m) * (1 + 0.3 * t)).mean(1)
        self.legs[140 * 32 + 9, 2, 2] = float("nan")

    def __len__(self):
        return len(self.fuel)

    def __getitem__(self, k):
        return self.legs[k], self.fuel[k]


class Fuel(nn.Module):
    def __init__(self):
        super().__init__()
        self.leg = nn.Linear(5, 32)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), 1)
        self.burn = nn.Linear(32, 1)

    def forward(self, x):
        return self.burn(self.encoder(self.leg(x)).mean(1))[:, 0]


model = Fuel()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step, (legs, fuel) in enumerate(torch.utils.data.DataLoader(Flights(32 * 210), batch_size=32)):
    loss = F.huber_loss(model(legs), fuel)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 138 < step < 143 or step == 209:
        print(step, loss.item(), "NaN in batch", int(legs.isnan().sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
