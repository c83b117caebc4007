"""Groundwater wells, two tasks on one trunk: level (every row has it) and nitrate (some rows only). Gradient normalised layer by layer (a home-made LARS: every tensor's gradient is scaled to a norm that goes with the weight's), SGD.
FAULT at step 117: a batch has no row with a nitrate value; the nitrate head's gradient is exactly zero, its norm too, and grad * (target / norm) is 0 * inf = NaN in that head, from then on in all.
Without Rangewatch: loss 3.7 to 0.1 at step 116, 0.07 at 117 itself, NaN from 118.
Cause: clip (hand-made normalisation divides by a gradient norm of zero). Step: 117. Right: eps in the denominator, leave out tensors without gradient. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["clip", "backward_arithmetic"], "step": [117, 119], "place": r"(?i)nitrate|trunk|level", "rank": None,
          "right": r"(?i)norm|clip|divi|eps|zero|0 ?/ ?0", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(250)
torch.set_num_threads(1)


class Wells(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(14, 64), nn.Softplus(), nn.Linear(64, 48), nn.Softplus())
        self.level = nn.Linear(48, 1)
        self.nitrate = nn.Linear(48, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.level(h)[:, 0], self.nitrate(h)[:, 0]


geology = torch.randn(14, 2) / 3


def survey(step, n=64):
    x = torch.randn(n, 14)
    z = x @ geology
    has_nitrate = (torch.rand(n) < 0.3).float()
    if step == 117:
        has_nitrate.zero_()
    return x, z[:, 0] + 0.3 * z[:, 1] ** 2, torch.tanh(z[:, 1]), has_nitrate


def normalise_by_layer(model, trust=0.05):
    for p in model.parameters():
        p.grad.mul_(trust * (p.norm() + 0.1) / p.grad.norm())


model = Wells()
sgd = torch.optim.SGD(model.parameters(), lr=0.4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 260)
handle = rangewatch.attach(model, sgd)
for step in range(260):
    x, level, nitrate, has = survey(step)
    a, b = model(x)
    loss = (a - level).pow(2).mean() + (has * (b - nitrate).pow(2)).sum() / has.sum().clamp(min=1)
    sgd.zero_grad()
    loss.backward()
    with torch.no_grad():
        normalise_by_layer(model)
    sgd.step()
    schedule.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or step in (116, 117, 118):
        print(f"step {step} loss {loss.item():.4f}", flush=True)
