"""A river's level is forecast from rain, one short window after the other, by a leaky reservoir whose state is carried from window to window (truncated back-propagation); float16 autocast, no scaler, SGD with momentum.
FAULT from step 0, felt from some step 121 to 135 on: the reservoir's recurrence `memory` is a frozen matrix with a spectral radius of 1.008 (it was meant to be 0.98), the state is never reset and grows by e about each 16 windows (8 steps of the recurrence in each); the head is after a norm, so that
nothing shows, until a float16 product passes 65504 and is inf, and then NaN.
Without Rangewatch: mse 0.39 to 0.014 at step 120; the largest state 7, 174 (step 30), 1227 (60), 8656 (90), 60320 (120); NaN by step 135 and to the end.
Cause: forward_arithmetic (or weight: the matrix). Step: the growth can be seen dozens of steps before; the overflow at the latest. Right: the state grows / spectral radius / reset / float16 range. Wrong: lower the learning rate, NaN in the data, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "weight"], "step": [10, 136], "place": r"memory", "rank": None,
          "right": r"(?i)overflow|65504|fp16|float16|grow|state|range|bf16|bfloat16", "wrong": ["[Ll]ower the learning rate", "[Mm]issing values", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1880)
torch.set_num_threads(1)
WINDOW, STREAMS, UNITS = 8, 24, 48
rain_past = torch.zeros(STREAMS)


def next_window():
    global rain_past
    rain = torch.relu(torch.randn(WINDOW, STREAMS))
    level = []
    for r in rain:
        rain_past = 0.7 * rain_past + 0.3 * r
        level.append(rain_past)
    return rain[..., None], torch.stack(level)


class River(nn.Module):
    def __init__(self, radius):
        super().__init__()
        self.memory = nn.Linear(UNITS, UNITS, bias=False)
        turn, _ = torch.linalg.qr(torch.randn(UNITS, UNITS))
        self.memory.weight = nn.Parameter(radius * turn, requires_grad=False)
        self.rain = nn.Linear(1, UNITS)
        self.even = nn.LayerNorm(UNITS)
        self.fast = nn.GRU(1, 24)
        self.gauge = nn.Linear(UNITS + 24, 1)

    def forward(self, rain, state):
        out = []
        for r in rain:
            state = self.memory(state) + self.rain(r)
            out.append(self.even(state.float()))
        return self.gauge(torch.cat([torch.stack(out), self.fast(rain)[0]], 2))[..., 0], state


river = River(radius=1.008)
opt = torch.optim.SGD([p for p in river.parameters() if p.requires_grad], lr=0.03, momentum=0.9)
handle = rangewatch.attach(river, opt)
state = torch.zeros(STREAMS, UNITS)
for step in range(160):
    rain, level = next_window()
    with torch.autocast("cpu", dtype=torch.float16):
        forecast, state = river(rain, state.detach())
    loss = F.mse_loss(forecast.float(), level)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 15 == 0:
        print(step, f"mse {loss.item():.5f} largest state {state.abs().max().item():.0f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
