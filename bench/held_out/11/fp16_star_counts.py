"""A star's temperature from its spectrum by a set of convolutions in float16 under autocast, without a scaler. FAULT at step 105: one batch comes in counts
of photons, 20000 times as large as the normed fluxes; they fit into float16, their sums do not: inf.
Without Rangewatch: loss 0.58 to 0.009 at step 104; inf at step 105 (its largest input is 22939, finite in float16), NaN from step 106 on.
Variant of: overflow: fp16_one_large_batch.
Cause: forward_arithmetic (overflow in float16) or data. Step: 105. Place: wide. Right: float16 / overflow / bfloat16 / batch / input / scale.
Wrong: attention mask, lower the rate."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [104, 106], "place": ".*(wide|input|batch).*", "rank": None,
          "wrong": ["[Ll]ower the learning rate", "attention mask"],
          "right": "float16|half|overflow|bfloat16|float32|batch|input|data"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1116); torch.set_num_threads(1)
wave = torch.linspace(0.4, 2.0, 64)


class StarNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lines = nn.Conv1d(1, 16, 9, stride=2)
        self.wide = nn.Linear(16 * 28, 32)
        self.temperature = nn.Linear(32, 1)
        for each in (self.lines, self.wide):
            nn.init.kaiming_normal_(each.weight)

    def forward(self, x):
        return self.temperature(F.relu(self.wide(F.relu(self.lines(x)).flatten(1))))[:, 0]


def stars(n):
    kelvin = 3 + 6 * torch.rand(n)
    flux = 1 / (wave ** 5 * (torch.exp(14.4 / (wave * kelvin[:, None])) - 1))
    flux = flux / flux.amax(1, keepdim=True)
    return (flux + 0.05 * torch.randn(n, 64))[:, None], (kelvin - 6) / 2


model = StarNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = stars(32)
    if step == 105:
        x = 2e4 * x  # counts
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    loss = F.mse_loss(out.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 103 < step < 108:
        print(step, loss.item(), "largest input", x.max().item(), "outputs finite", out.isfinite().all().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
