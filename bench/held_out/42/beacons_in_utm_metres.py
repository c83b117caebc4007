"""Positions of six radio beacons from ranges measured by a rover (positions in UTM metres as float32 parameters, a range offset per beacon, a small MLP for the drift by temperature), Adam lr 0.008 with a closure.
FAULT at step 0: the coordinates are some 460 000 and 5 600 000, float32 steps there are 0.03 m and 0.5 m; an update of 0.008 m is rounded away and the beacons never move.
Without Rangewatch: mse 1.64 to 0.44 by offsets and drift alone; the beacons have moved by exactly 0.0 after 350 steps (in float64: moved by 1.5 m, mse 0.022).
Cause: weight (large values in float32 cannot take the update) / optimizer / learning_rate (below the resolution). Step: from 0. Right: positions relative to a local origin, float64, larger updates. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["weight", "optimizer", "learning_rate"], "step": [0, 60], "place": r"(?i)beacon", "rank": None,
          "right": r"(?i)round|precision|float64|double|resolution|ulp|origin|offset|cent(re|er)|rescale|scale|master|(raise|larger|increase).*(rate|lr)", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import torch
import rangewatch

torch.manual_seed(88)
torch.set_num_threads(1)
ORIGIN = torch.tensor([460_000.0, 5_600_000.0], dtype=torch.float64)
true_at = ORIGIN + 400 * torch.rand(6, 2, dtype=torch.float64)
true_offset = torch.tensor([0.5, -0.3, 0.9, 0.0, -0.7, 0.2], dtype=torch.float64)


def drive(n):
    where = ORIGIN + 400 * torch.rand(n, 2, dtype=torch.float64)
    temperature = 20 * torch.rand(n, 1, dtype=torch.float64)
    ranges = (where[:, None] - true_at).norm(dim=-1) + true_offset + 0.03 * (temperature - 10)
    ranges = ranges + 0.05 * torch.randn_like(ranges)
    return where.float(), (temperature / 10 - 1).float(), ranges.float()


class Survey(torch.nn.Module):
    def __init__(self, first_guess):
        super().__init__()
        self.beacon_xy = torch.nn.Parameter(first_guess)
        self.range_offset = torch.nn.Parameter(torch.zeros(6))
        self.drift = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def forward(self, where, temperature):
        gap = where[:, None] - self.beacon_xy
        return gap.square().sum(-1).sqrt() + self.range_offset + self.drift(temperature)


survey = Survey((true_at + 0.9 * torch.randn(6, 2, dtype=torch.float64)).float())
start = survey.beacon_xy.detach().clone()
adam = torch.optim.Adam(survey.parameters(), lr=0.008)
handle = rangewatch.attach(survey, adam)
for step in range(350):
    where, temperature, ranges = drive(128)

    def closure():
        adam.zero_grad()
        loss = (survey(where, temperature) - ranges).square().mean()
        loss.backward()
        return loss

    loss = adam.step(closure)
    if step % 35 == 0 or step == 349:
        print("step", step, "mse of the ranges in m2", round(loss.item(), 4), "beacons moved by", (survey.beacon_xy - start).abs().max().item(), flush=True)
