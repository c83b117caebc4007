"""A net in float16 autocast with a GradScaler that lays out cities on a plane from their timetables; the loss is the difference of travel times and distances, with a square root. FAULT
at step 125: some pairs are a city with itself. The distance is 0 and so is the loss of the pair, but the derivative of the root is inf, whatever the scale; the scaler skips each step.
Without Rangewatch: loss 2.05 to 0.047 at step 124 with a scale of 8192; from step 125 on each step is skipped, the scale is 4096, 2048, 1024 ... 2e-19 at the end; the loss
stands at 0.036 to 0.047, finite.
Cause: backward_arithmetic (the root at 0), or the pairs in the data, or eps. Step: 125 on. Right: sqrt / root / eps / zero / backward. Wrong: raise the scale, lower the learning rate, mask."""
EXPECT = {"cause": ["backward_arithmetic", "data", "eps"], "step": [124, 128], "place": None, "rank": 0,
          "right": "(?i)sqrt|root|eps|zero|backward|gradient|divi", "wrong": ["[Ll]ower the learning rate", "attention mask", "[Rr]aise the (initial )?scale"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2130)
torch.set_num_threads(1)
CITIES = 80
truth = torch.rand(CITIES, 2) * 4
timetable = torch.cat((truth, truth ** 2), 1) @ torch.randn(4, 24) / 4 + 0.05 * torch.randn(CITIES, 24)


class Plane(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(24, 128), nn.SiLU(), nn.Linear(128, 64), nn.SiLU())
        self.point = nn.Linear(64, 2)

    def forward(self, x):
        return self.point(self.trunk(x))


model = Plane()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2048.0, growth_interval=50)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    i, j = torch.randint(0, CITIES, (96,)), torch.randint(1, CITIES, (96,))
    j = (i + j) % CITIES
    if step >= 125:
        j[:3] = i[:3]
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        a, b = model(timetable[i]), model(timetable[j])
    distance = torch.sqrt((a.float() - b.float()).pow(2).sum(1))
    time = (truth[i] - truth[j]).pow(2).sum(1).sqrt()
    loss = (distance - time).abs().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or 123 < step < 128 or step == 199:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
