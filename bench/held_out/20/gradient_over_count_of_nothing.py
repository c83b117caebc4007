"""A recurrent net that fills gaps in tide gauges; the gradient of two half batches is summed and divided by the number of readings. FAULT at step 110: the
counter was reset a moment too early, and the sum is divided by 0 + 1e-9 once. Adam's moments are ruined:
all weights drift on along that one gradient, and then stand.
Without Rangewatch: loss 0.016 at step 110, where the gradient norm is 4e10; 0.055, 0.16, 2.0 at step 120, 5.9 at the end; without the fault
0.0093.
Cause: backward_arithmetic (or optimizer: its state; clip). Step: 110. Right: gradient / second moment / clip / state. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic", "optimizer", "clip"], "step": [109, 112], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "(?i)gradient|moment|clip|state|norm"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2011); torch.set_num_threads(1)
hour = torch.arange(30.0)


class Tide(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.write = nn.GRU(2, 28, batch_first=True, bidirectional=True), nn.Linear(56, 1)

    def forward(self, x):
        return self.write(self.read(x)[0])[:, :, 0]


def gauges(n):
    a, b = 6.28 * torch.rand(n, 1), 6.28 * torch.rand(n, 1)
    y = torch.sin(0.52 * hour + a) + 0.4 * torch.sin(0.25 * hour + b)
    seen = (torch.rand(n, 30) < 0.75).float()
    return torch.stack((y * seen, seen), 2), y


model = Tide()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
count = 0
for step in range(230):
    optimizer.zero_grad()
    total, shown = 0.0, 0
    for _ in range(2):
        x, y = gauges(16)
        loss = ((model(x) - y) ** 2).sum()
        loss.backward()
        total, shown, count = total + loss.item(), shown + y.numel(), count + y.numel()
    if step == 110:
        count = 0  # the reset belongs below
    for p in model.parameters():
        p.grad.div_(count + 1e-9)
    norm = sum(p.grad.double().square().sum() for p in model.parameters()) ** 0.5
    optimizer.step()
    count = 0
    if step % 20 == 0 or 108 < step < 113 or step == 229:
        print(step, total / shown, "gradient norm", norm.item(), "weight", model.write.weight[0, 0].item(), flush=True)
    handle.log(loss=total / shown)
handle.detach()
