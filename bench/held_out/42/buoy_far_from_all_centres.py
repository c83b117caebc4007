"""Sea temperature at a point of a bay: normalised radial basis functions (40 learned centres and widths; weights exp(-d**2 / 2 h**2) divided by their sum) with a value vector per centre and a small head. RMSprop.
FAULT at step 118: one buoy has broken loose and reports from 14 bay widths away; all 40 weights underflow to 0 and are divided by their sum, 0 / 0.
Without Rangewatch: Huber loss 0.25 to 0.0018 at 117, NaN from 118.
Cause: forward_arithmetic (weights normalised by 0) / data (a far-off row). Step: 118. Right: softmax of the exponents or eps in the sum, check the range of the input. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [117, 120], "place": r"(?i)basis|head|^$|bay|input", "rank": None,
          "right": r"(?i)divi|normali|eps|softmax|sum|zero|underflow|input|range|outlier|row|forward", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch, rangewatch
from torch import nn


class NormalisedBasis(nn.Module):
    def __init__(self, centres, out):
        super().__init__()
        self.centre = nn.Parameter(torch.rand(centres, 2))
        self.log_width = nn.Parameter(torch.full((centres,), -1.8))
        self.value = nn.Parameter(0.3 * torch.randn(centres, out))

    def forward(self, xy):
        d2 = (xy[:, None, :] - self.centre).square().sum(-1)
        w = torch.exp(-0.5 * d2 / torch.exp(2 * self.log_width))
        share = w / w.sum(1, keepdim=True)
        return share @ self.value


class Bay(nn.Module):
    def __init__(self):
        super().__init__()
        self.basis = NormalisedBasis(40, 12)
        self.head = nn.Sequential(nn.Linear(12, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, xy):
        return self.head(self.basis(xy))[:, 0]


def temperature(xy):
    x, y = xy.unbind(1)
    return torch.sin(5 * x) * torch.cos(4 * y) + 0.5 * x - 0.3 * y


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(5150)
    bay = Bay()
    rms = torch.optim.RMSprop(bay.parameters(), lr=2e-3)
    watch = rangewatch.attach(bay, rms)
    for step in range(200):
        xy = torch.rand(96, 2)
        if step == 118:
            xy[31] = torch.tensor([14.2, -9.7])
        seen = temperature(xy.clamp(0, 1)) + 0.05 * torch.randn(96)
        error = bay(xy) - seen
        loss = nn.functional.huber_loss(error, torch.zeros_like(error))
        rms.zero_grad()
        loss.backward()
        rms.step()
        watch.log(loss=loss.item())
        if step % 25 == 0 or 116 < step < 121:
            print(step, "huber", round(loss.item(), 5), flush=True)
    watch.detach()
