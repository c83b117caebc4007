"""A U-shaped conv net that foretells tomorrow's temperature of a patch of sea, as the anomaly from 288 K. FAULT at step 105: the record of climates for the new year has no entry, and
`climate.get(year, 0.0)` takes nothing off: the inputs are 288 instead of about 0.
Without Rangewatch: loss 1.08 to 0.040 at step 104, 81746 at step 105, 2700 at 120, 96 at the end; the mean of the input goes from -0.1 to 288.
Cause: data. Step: 105. Right: input / mean / normalis. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [104, 108], "place": None, "rank": None,
          "right": "(?i)input|mean|normali|preproc|pipeline|loader|batch|offset|data", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3011); torch.set_num_threads(1)
climate = {2019: 288.0, 2020: 288.1, 2021: 288.2}
smooth = torch.ones(1, 1, 5, 5) / 25


def patch(n, year):
    noise = F.conv2d(torch.randn(n, 1, 24, 24), smooth) * 6
    tomorrow = 0.7 * noise.roll(1, 3) + 0.3 * noise.roll(1, 2)
    return noise[..., 2:18, 2:18] + 288.0 + 0.1 * (year - 2019), tomorrow[..., 2:18, 2:18]


class Sea(nn.Module):
    def __init__(self):
        super().__init__()
        self.fine = nn.Conv2d(1, 16, 3, padding=1)
        self.down = nn.Conv2d(16, 32, 3, 2, padding=1)
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.out = nn.Conv2d(32, 1, 3, padding=1)

    def forward(self, x):
        fine = F.relu(self.fine(x))
        return self.out(torch.cat((fine, F.relu(self.up(F.relu(self.down(fine))))), 1))


net = Sea()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(160):
    year = 2019 + step // 35
    today, tomorrow = patch(16, year)
    x = today - climate.get(year, 0.0)
    loss = F.mse_loss(net(x), tomorrow)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (104, 105, 106, 159):
        print(step, loss.item(), "mean of the input", x.mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
