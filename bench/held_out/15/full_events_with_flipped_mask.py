"""Attention over the 12 hits of a particle event, of which the hit of the greatest charge tells the vertex. FAULT from step 100 on: the reader gives a
mask, True for a real hit, and the net fills with -1e9 where it is True. All events are full, so all scores are -1e9, and the attention is uniform.
Without Rangewatch: loss 1.03 to 0.0049 at step 99, 1.01 at step 100, then slowly down to 0.44 at the end, by the values alone.
Cause: mask. Step: 100. Right: mask / inverted / padding / uniform attention. Wrong: GradScaler, lower the learning rate, overflow."""
EXPECT = {"cause": ["mask"], "step": [99, 160], "place": None, "rank": 0,
          "wrong": ["GradScaler", "[Ll]ower the learning rate", "overflow"],
          "right": "mask|invert|padding|attention|uniform"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1506); torch.set_num_threads(1)
HITS = 12


class VertexFinder(nn.Module):
    """Attention over the hits of a particle event; the hit of the greatest charge tells the vertex."""
    def __init__(self, width=32):
        super().__init__()
        self.hit = nn.Sequential(nn.Linear(4, width), nn.GELU(), nn.Linear(width, width))
        self.query = nn.Parameter(0.2 * torch.randn(width))
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.vertex = nn.Linear(width, 3)

    def forward(self, x, ignore=None):
        h = self.hit(x)
        scores = self.key(h) @ self.query
        if ignore is not None:
            scores = scores.masked_fill(ignore, -1e9)
        return self.vertex((scores.softmax(1)[..., None] * self.value(h)).sum(1))


def events(n):
    place, charge = torch.randn(n, HITS, 3), torch.rand(n, HITS, 1)
    charge[torch.arange(n), torch.randint(0, HITS, (n,))] = 2.0
    first = charge.argmax(1)
    y = place.gather(1, first[:, :, None].expand(-1, -1, 3))[:, 0]
    return torch.cat((place, charge), 2), y, torch.ones(n, HITS, dtype=torch.bool)


model = VertexFinder()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y, real = events(64)
    # from the second run on events can have fewer hits, says the reader; it gives True for a real hit. All events here are full.
    vertex = model(x) if step < 100 else model(x, real)
    loss = F.mse_loss(vertex, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (99, 101, 219):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
