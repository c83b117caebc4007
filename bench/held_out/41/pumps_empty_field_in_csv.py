"""Autoencoder on the readings of pumps (CSV, 14 sensors), RMSprop, for the detection of anomalies.
FAULT at step 131: a field of the CSV is empty; float('nan') is what the reader makes of it, and nobody drops the row.
Without Rangewatch: loss 1.9 to 0.04 .. 0.14 up to batch 130, NaN at 131 and ever after.
Cause: data (NaN in the input). Step: 131. Right: clean or skip rows with NaN. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["data"], "step": [130, 133], "place": None, "rank": None,
          "right": r"(?i)input|batch|row|data|missing|isfinite|isnan", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import csv
import io
import math
import random
import torch
from torch import nn
import rangewatch

random.seed(14); torch.manual_seed(14)
torch.set_num_threads(1)
SENSORS = 14
mix = [[random.gauss(0, 1) for _ in range(SENSORS)] for _ in range(3)]


def write_csv(rows):
    f = io.StringIO()
    w = csv.writer(f)
    w.writerow(["time"] + [f"s{i}" for i in range(SENSORS)])
    for r in range(rows):
        load, heat, wear = math.sin(r / 40), math.cos(r / 200), random.gauss(0, 1)
        values = [f"{load * a + heat * b + wear * c + random.gauss(0, 0.1):.4f}" for a, b, c in zip(*mix)]
        if r == 131 * 40 + 17:
            values[9] = ""
        w.writerow([r] + values)
    f.seek(0)
    return f


def read(f):
    reader = csv.reader(f)
    next(reader)
    return torch.tensor([[float(v) if v else float("nan") for v in row[1:]] for row in reader])


class PumpAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SENSORS, 32), nn.Tanh(), nn.Linear(32, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, SENSORS))

    def forward(self, x):
        return self.decoder(self.encoder(x))


readings = read(write_csv(180 * 40))
ae = PumpAE()
opt = torch.optim.RMSprop(ae.parameters(), lr=2e-3)
handle = rangewatch.attach(ae, opt)
for i, x in enumerate(readings.split(40)):
    rec = ae(x)
    loss = torch.mean((rec - x) ** 2)
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if i % 20 == 0 or 129 <= i <= 133:
        print("batch", i, "reconstruction", round(loss.item(), 5), flush=True)
handle.detach()
