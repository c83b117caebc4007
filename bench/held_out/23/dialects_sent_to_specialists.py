"""A mixture of five small nets that maps sounds of five dialects to vowels; a router sends each row to the best of them alone. FAULT from step 0 on: the
first feature is the pitch in hertz (about 200), not normalised for the router, so that it sends nearly all rows to one of the five by the sign of its
weights; three get no row in the whole training and do not learn.
Without Rangewatch: loss 2.24 to 1.12 at step 219, rows 0, 487, 0, 0 and 20633; with a normalised pitch all five get rows and it is 0.48.
Causes: no_gradient, dead_units (specialists without rows), data (the pitch). Right: expert / router / balance / no gradient / unused. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["no_gradient", "dead_units", "data"], "step": [0, 219], "place": "(specialists.*|router.*)?", "rank": 0, "least": "info",
          "right": "(?i)expert|rout|balanc|gradient|unused|input|normali|never", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2310); torch.set_num_threads(1)


class Dialects(nn.Module):
    def __init__(self, n=5):
        super().__init__()
        self.router = nn.Linear(12, n)
        self.specialists = nn.ModuleList(nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 9)) for _ in range(n))
        self.rows = [0] * n

    def forward(self, sound, pitch):
        p = self.router(torch.cat((pitch, sound[:, 1:]), 1)).softmax(1)
        weight, which = p.max(1)
        out = sound.new_zeros(len(sound), 9)
        for i, net in enumerate(self.specialists):
            rows = (which == i).nonzero()[:, 0]
            self.rows[i] += len(rows)
            if len(rows):
                out = out.index_add(0, rows, weight[rows, None] * net(sound[rows]))
        return out


model = Dialects()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
handle = rangewatch.attach(model, optimizer)
vowels = torch.randn(5, 9, 12)
for step in range(220):
    dialect, y = torch.randint(0, 5, (96,)), torch.randint(0, 9, (96,))
    sound = vowels[dialect, y] + 0.4 * torch.randn(96, 12)
    loss = F.cross_entropy(model(sound, 200 + 20 * torch.randn(96, 1)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 219:
        print(step, loss.item(), "rows", model.rows, flush=True)
    handle.log(loss=loss.item())
handle.detach()
