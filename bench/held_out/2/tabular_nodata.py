"""Weather tables to yield: a residual MLP under torch.compile, AdamW, standardised by the first years' mean and deviation. FAULT from step 140: the
newer files write a missing humidity as -9999, in some four rows a batch; standardised that is about -700, finite, in one column of twelve. The loss
goes from 0.6 to some thousands. Report: WorldCereal/presto-worldcereal#1 (truly missing values are still passed to the model in training),
spaceml-org/ml4floods#25. Cause: data (rows of the batch), step 140. Right: look at / clip / mask the rows of the input. Wrong: lower the learning
rate, precision, eps of a norm."""
EXPECT = {"cause": ["data"], "step": [140, 141], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "bfloat16", "GradScaler", "larger eps"], "right": "batch|input|samples?|rows?\\b"}
import torch
from torch import nn
from torch.nn import functional as F
import rangewatch

torch.manual_seed(2)
torch.set_num_threads(1)
mix = torch.randn(12, 6)
mean = torch.tensor([20.0, 55.0, 1010.0] + [0.0] * 9)
scale = torch.tensor([6.0, 14.0, 9.0] + [1.0] * 9)


def table(step, rows=64):
    z = torch.randn(rows, 12)
    y = torch.tanh(z @ mix).sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1)
    raw = z * scale + mean
    if step >= 140:
        raw[torch.randperm(rows)[:4], 1] = -9999.0
    return (raw - mean) / scale, y


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, h):
        return h + self.down(F.gelu(self.up(h)))


class Yield(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Linear(12, width)
        self.body = nn.Sequential(Residual(width), Residual(width), Residual(width))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.body(self.embed(x)))


model = Yield()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
fast = torch.compile(model)
for step in range(200):
    x, y = table(step)
    loss = F.mse_loss(fast(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 138 <= step < 144:
        print(f"{step:4d} {loss.item():.4f}")
