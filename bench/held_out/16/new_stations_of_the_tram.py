"""A net with embeddings of stations that forecasts the minutes of a tram ride; the table of stations was enlarged from 40 to 48 rows before this training, the
old rows copied into torch.empty. Seven new rows were filled later; the last was forgotten and holds what was in memory (written here as 3e18, so that
the script does the same each time). FAULT at step 110: the last station opens and its row is drawn for the first time.
Without Rangewatch: loss 5.0 to 0.37 at step 109, inf at step 110 and to the end.
Cause: weight (the row was never initialised). Step: 110, or 0, when the row was there already. Place: the embedding of the stations. Right: row / embedding /
initialise / weights / resize. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["weight"], "step": [0, 111], "place": "(.*\\.)?station(\\..*)?", "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "row|embedding|initiali|weight|resiz|station"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1604); torch.set_num_threads(1)
east, north = torch.rand(48), torch.rand(48)


class Ride(nn.Module):
    def __init__(self):
        super().__init__()
        self.station = nn.Embedding(40, 12)
        self.clock = nn.Linear(2, 12)
        self.minutes = nn.Sequential(nn.Linear(36, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, start, end, hour):
        clock = self.clock(torch.stack((hour.sin(), hour.cos()), 1))
        return self.minutes(torch.cat((self.station(start), self.station(end), clock), 1))[:, 0]


def rides(n, stations):
    start, end, hour = torch.randint(0, stations, (n,)), torch.randint(0, stations, (n,)), 6.2832 * torch.rand(n)
    far = (east[start] - east[end]).abs() + (north[start] - north[end]).abs()
    return start, end, hour, 3 * far * (1 + 0.3 * hour.sin()) + 0.1 * torch.randn(n)


model = Ride()
old = model.station.weight.data
table = torch.empty(48, 12)
table[:40] = old
table[40:47] = 0.5 * torch.randn(7, 12)
table[47] = 3e18  # what torch.empty left there
model.station = nn.Embedding.from_pretrained(table, freeze=False)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    start, end, hour, minutes = rides(256, 47 if step < 110 else 48)
    loss = F.mse_loss(model(start, end, hour), minutes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 107 < step < 114 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
