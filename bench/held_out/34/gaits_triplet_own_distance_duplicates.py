"""A GRU embeds walkers' gaits; triplet loss with a hand-written Euclidean distance `sqrt(sum of squares)` (Adam). FAULT at step 140: a doubled recording in the second shard: anchor and
positive are the same, the distance is 0, its gradient is 0 * inf = NaN.
Without Rangewatch: loss 0.83 to 0.02 at step 139, 0.012 at step 140, NaN from step 141 on.
Cause: backward_arithmetic (sqrt at 0). Step: 140. Right: sqrt / epsilon / distance. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [139, 144], "place": None, "rank": None,
          "right": "(?i)sqrt|eps|distance|norm|backward|zero", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(347); torch.set_num_threads(1)
pace, lift = torch.rand(20) * 3 + 0.5, torch.randn(20, 3)


def gait(who):
    t = torch.arange(16.0) / 4
    phase = torch.rand(len(who), 1) * 1.5
    wave = torch.sin(pace[who, None] * t + phase)
    return wave.unsqueeze(2) * lift[who, None] + 0.15 * torch.randn(len(who), 16, 3)


class Walker(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 48, batch_first=True)
        self.proj = nn.Linear(48, 16)

    def forward(self, x):
        return self.proj(self.gru(x)[1][0])


def distance(a, b):
    return torch.sqrt(((a - b) ** 2).sum(1))


model = Walker()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    who = torch.randint(0, 20, (32,))
    other = (who + torch.randint(1, 20, (32,))) % 20
    anchor, positive, negative = gait(who), gait(who), gait(other)
    if step >= 140:
        positive[5] = anchor[5]
    a, p, n = model(anchor), model(positive), model(negative)
    loss = (distance(a, p) - distance(a, n) + 1.0).relu().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 138 < step < 144 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
