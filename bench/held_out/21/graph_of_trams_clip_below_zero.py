"""A graph net on a random graph of tram stops that predicts which of four lines a stop lies on, by message passing with a dense matrix. FAULT at step 121: the limit of
clip_grad_norm_ falls linearly, 1 - step / 120, and is negative from then on; the gradients are multiplied by a negative number, each step climbs.
Without Rangewatch: loss 1.40 to 0.07 at step 120 (limit 0), 0.76 at step 140, 50.8 at step 160, 17,707 at the end.
Cause: clip. Step: 121 on (at first the limit is small). Right: clip / limit / max_norm / negative / sign. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["clip"], "step": [119, 190], "place": None, "rank": 0,
          "right": "(?i)clip|max_norm|limit|negative|sign", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2129)
torch.set_num_threads(1)
STOPS = 150
line = torch.randint(0, 4, (STOPS,))
close = torch.rand(STOPS, STOPS) < torch.where(line[:, None] == line, 0.08, 0.01)
near = (close | close.T).float().fill_diagonal_(1.0)
near = near / near.sum(1, keepdim=True)
about = torch.randn(STOPS, 16) + 0.7 * torch.randn(4, 16)[line]
known = torch.rand(STOPS) < 0.5


class Trams(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.line = nn.Linear(16, 64), nn.Linear(128, 64), nn.Linear(64, 4)

    def forward(self, x):
        h = F.relu(self.first(F.dropout(near @ x, 0.3, self.training)))
        return self.line(F.relu(self.second(torch.cat((h, near @ h), 1))))


model = Trams()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    loss = F.cross_entropy(model(about)[known], line[known])
    optimizer.zero_grad()
    loss.backward()
    limit = 1.0 - step / 120
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "limit", limit, "norm before", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
