"""A spectral-free neural operator (depth-wise convs on a line) learns the heat that remains after a while from the heat at the start; float16 autocast, GradScaler, Adam.
FAULT at step 150: the loss is the relative error |u - v|^2 / |v|^2 per rod, with no floor. In this batch one rod begins (and so ends) nearly cold (1e-4 of the others): its term is some 1e7 as large as the others, the scaled gradient overflows in float16, the scaler skips the update and halves. It happens this once.
Without Rangewatch: relative error 0.27 to 0.020 at step 149, 63595 at step 150 and the scale falls from 1024 to 512, 0.021 at step 151: one update lost (the scaler also halves from 8192 to 1024 in its first steps).
Cause: data / loss / loss_scale: one sample; a skipped step. A hint is enough. Step: 150. Right: add a floor to the division, look at the sample; the skip itself is harmless. Wrong: lower the learning rate, reinitialise, attention mask."""
EXPECT = {"cause": ["data", "loss", "loss_scale", "backward_arithmetic"], "step": [149, 153], "place": None, "rank": None, "least": "info",
          "right": r"(?i)skip|overflow|floor|eps|sample|batch|scale|outlier", "wrong": ["[Ll]ower the learning rate", "attention mask", "initialis", "checkpoint"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3710); torch.set_num_threads(1)
CELLS = 48


def rods(n, step):
    x = torch.linspace(0, 3.14159, CELLS)
    k = torch.arange(1, 7)
    c = torch.randn(n, 6) / k
    if step == 150:
        c[4] *= 1e-4
    modes = torch.sin(k[:, None] * x)
    return (c @ modes)[:, None], ((c * torch.exp(-0.05 * k ** 2)) @ modes)[:, None]


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.far = nn.Conv1d(width, width, 9, padding=4, groups=width)
        self.here = nn.Conv1d(width, width, 1)

    def forward(self, u):
        return u + torch.tanh(self.far(u) + self.here(u))


class Operator(nn.Module):
    def __init__(self, width=20, depth=3):
        super().__init__()
        self.raise_ = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList([Layer(width) for _ in range(depth)])
        self.project = nn.Conv1d(width, 1, 1)

    def forward(self, u):
        h = self.raise_(u)
        for layer in self.layers:
            h = layer(h)
        return self.project(h)


op = Operator()
adam = torch.optim.Adam(op.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 13)
watch = rangewatch.attach(op, adam, scaler=scaler)
for step in range(200):
    start, end = rods(24, step)
    adam.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        guess = op(start)
    wrong = (guess.float() - end).pow(2).sum((1, 2)) / end.pow(2).sum((1, 2))
    loss = wrong.mean()
    scaler.scale(loss).backward()
    scaler.step(adam)
    scaler.update()
    if step % 20 == 0 or 148 <= step <= 152 or step == 199:
        print(step, "relative error", loss.item(), "scale", scaler.get_scale(), flush=True)
    watch.log(loss=loss.item())
watch.detach()
