"""A GRU that guesses the next track of a playlist. FAULT at step 110: 40 new tracks come; the table of tracks is replaced by a longer one whose new rows
start at zero, but the optimizer still holds the old table: the new one, old rows and new rows alike, is never updated and the new tracks all look alike.
Without Rangewatch: loss 4.8 to 0.019 at step 109, 3.2 at step 110, then 1.0 to 1.6 to the end; not one value of the new table has moved by step
239.
Cause: optimizer (a parameter it does not hold) or no_gradient (the old parameter gets none any more). Step: 110 to the end. Right: hand the new table
to the optimizer. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["optimizer", "no_gradient"], "step": [109, 240], "place": "catalogue.*", "rank": 0,
          "right": "(?i)optimi[sz]er|param_group|parameter", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2501); torch.set_num_threads(1)
OLD, ALL = 80, 120
follows = torch.randperm(ALL)


class PlaylistNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.catalogue = nn.Embedding(OLD, 24)
        self.memory = nn.GRU(24, 64, batch_first=True)
        self.guess = nn.Linear(64, ALL)

    def forward(self, tracks):
        return self.guess(self.memory(self.catalogue(tracks))[0])

    def grow(self, n):
        longer = nn.Embedding(n, 24)
        with torch.no_grad():
            longer.weight.zero_()
            longer.weight[:OLD] = self.catalogue.weight
        self.catalogue = longer


net = PlaylistNet()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(240):
    if step == 110:
        net.grow(ALL)
        start = net.catalogue.weight.detach().clone()
    known = OLD if step < 110 else ALL
    tracks = torch.randint(0, known, (32, 8))
    loss = F.cross_entropy(net(tracks).flatten(0, 1), follows[tracks].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (109, 110, 239):
        print(step, loss.item(), "moved", (net.catalogue.weight - start).abs().max().item() if step >= 110 else "", flush=True)
    handle.log(loss=loss.item())
handle.detach()
