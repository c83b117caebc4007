"""Birds of a swarm look at those within a radius (an attention of its own making, without oneself) to foretell their turn. FAULT at step 91: from there recordings hold birds
that have no other within the radius: the whole row of scores is -inf, its softmax NaN.
Without Rangewatch: loss 0.48 to 0.049 at step 91; the first lone bird comes in step 92, NaN from there to the end.
Cause: mask or data. Step: 91. Right: mask / row / -inf / neighbour. Wrong: GradScaler, learning rate."""
EXPECT = {"cause": ["mask", "data", "forward_arithmetic"], "step": [90, 95], "place": None, "rank": None,
          "right": "(?i)mask|row|-inf|neighbou?r|softmax", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3014); torch.set_num_threads(1)


class Look(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ask, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)

    def forward(self, h, near):
        score = self.ask(h) @ self.key(h).transpose(1, 2) / h.shape[-1] ** 0.5
        score = score.masked_fill(~near, float("-inf"))
        return self.norm(h + score.softmax(-1) @ self.value(h))


class Swarm(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.enter = nn.Linear(4, width)
        self.look = nn.ModuleList([Look(width), Look(width)])
        self.turn = nn.Linear(width, 2)

    def forward(self, x, near):
        h = torch.relu(self.enter(x))
        for layer in self.look:
            h = layer(h, near)
        return self.turn(h)


def record(n, spread):
    place, speed = spread * torch.randn(n, 12, 2), torch.randn(n, 12, 2)
    near = (torch.cdist(place, place) < 3.0) & ~torch.eye(12, dtype=torch.bool)
    weight = near.float() / near.sum(-1, keepdim=True).clamp(min=1)
    return torch.cat((place / spread, speed), 2), near, weight @ speed - 0.5 * speed


def recordings(n, spread, lonely):
    kept = []
    while len(kept) < n:
        x, near, y = record(n, spread)
        kept += [(a, b, c) for a, b, c in zip(x, near, y) if lonely or b.any(-1).all()]
    return (torch.stack(t) for t in zip(*kept[:n]))


net = Swarm()
optimizer = torch.optim.RAdam(net.parameters(), lr=4e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(170):
    x, near, y = recordings(16, 1.0, step >= 91)
    loss = (net(x, near) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (90, 91, 92, 93, 169):
        print(step, loss.item(), "rows without any", (~near.any(-1)).sum().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
