"""Power drawn by eight substations (0.8 MW to 140 MW, in kW): an MLP over hour, weekday and temperature gives the load factor, a learned capacity per station makes kW of it; loss relative to the mean. AdamW, class Trainer that writes a checkpoint every 60 steps and takes it back after a simulated outage.
FAULT at step 120: the checkpoint is written `.half()` "to save space"; a capacity of 140 000 kW is inf in float16, and the state loaded after the outage before step 120 has `capacity` = inf for two stations.
Without Rangewatch: loss 0.045 to 0.0005 at 119, inf at 120, NaN after.
Cause: weight (inf when it is loaded). Step: 120. Right: save in float32, check the loaded state, store the logarithm of the capacity. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["weight"], "step": [119, 122], "place": r"(?i)capacity", "rank": None,
          "right": r"(?i)checkpoint|load|weight|parameter|half|float16|fp16|inf|precision", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import io
import math
import torch
from torch import nn
import rangewatch

RATING = torch.tensor([800., 2400., 5200., 9000., 21000., 47000., 88000., 140000.])


class LoadModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.capacity = nn.Parameter(RATING * 0.8)
        self.station = nn.Embedding(8, 6)
        self.factor = nn.Sequential(nn.Linear(6 + 4, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, station, features):
        load = torch.sigmoid(self.factor(torch.cat([self.station(station), features], 1)))[:, 0]
        return load * self.capacity[station]


class Trainer:
    def __init__(self):
        torch.manual_seed(60)
        torch.set_num_threads(1)
        self.model = LoadModel()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.0)
        self.handle = rangewatch.attach(self.model, self.optimizer)
        self.disk = None

    def meter(self, n):
        station = torch.randint(0, 8, (n,))
        hour, cold = 24 * torch.rand(n), torch.randn(n)
        weekend = (torch.rand(n) < 2 / 7).float()
        x = torch.stack([torch.sin(hour * math.pi / 12), torch.cos(hour * math.pi / 12), weekend, cold], 1)
        share = torch.sigmoid(0.8 * x[:, 0] - 0.6 * weekend + 0.5 * cold + 0.2 * (station - 3.5))
        return station, x, share * RATING[station] * (1 + 0.03 * torch.randn(n))

    def save(self):
        self.disk = io.BytesIO()
        torch.save({k: v.half() for k, v in self.model.state_dict().items()}, self.disk)

    def load(self):
        self.disk.seek(0)
        self.model.load_state_dict(torch.load(self.disk))

    def fit(self, steps=200, outage=120):
        for step in range(steps):
            if step % 60 == 0:
                self.save()
            if step == outage:
                self.load()
            station, x, kw = self.meter(128)
            loss = ((self.model(station, x) - kw) / RATING[station]).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.handle.log(loss=loss.item())
            if step % 20 == 0 or step in (119, 121):
                print(f"step {step} loss {loss.item():.5f} largest capacity {self.model.capacity.max().item():.0f}", flush=True)
        self.handle.detach()


Trainer().fit()
