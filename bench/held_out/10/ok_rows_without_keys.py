"""A player's next move from the moves of the others near by: attention over neighbours, where many rows have no neighbour at all. Scores of -inf are
put in, such rows get one harmless key before the softmax, and their answer is set to zero afterwards. HEALTHY.
Without Rangewatch: loss 0.37 to 0.00002; 72 to 88 of 256 rows have no key in each batch."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1033); torch.set_num_threads(1)
PLAYERS = 8


class FlockNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward = nn.Linear(4, 32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.move = nn.Sequential(nn.Linear(64, 32), nn.SiLU(), nn.Linear(32, 2))

    def forward(self, x, near):
        h = self.inward(x)
        alone = ~near.any(2, keepdim=True)
        scores = self.query(h) @ self.key(h).transpose(1, 2) / 32 ** 0.5
        scores = scores.masked_fill(~(near | alone), float("-inf"))  # a row that is alone looks at everybody ...
        seen = (scores.softmax(2) @ self.value(h)).masked_fill(alone, 0.0)  # ... and nothing of it is kept
        return self.move(torch.cat((h, seen), 2))


def flocks(n):
    place, speed = 4 * torch.rand(n, PLAYERS, 2), torch.randn(n, PLAYERS, 2)
    near = (torch.cdist(place, place) < 1.0) & ~torch.eye(PLAYERS, dtype=torch.bool)
    mean_speed = near.float() @ speed / near.sum(2, keepdim=True).clamp(min=1)
    return torch.cat((place - 2, speed), 2), near, 0.5 * speed + 0.5 * mean_speed


model = FlockNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x, near, y = flocks(32)
    loss = F.mse_loss(model(x, near), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 259:
        print(step, loss.item(), "rows without a key", int((~near.any(2)).sum()), "of", 32 * PLAYERS, flush=True)
    handle.log(loss=loss.item())
handle.detach()
