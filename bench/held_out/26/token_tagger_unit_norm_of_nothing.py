"""A tagger of words (bidirectional GRU, sum of the losses over the tokens that have a tag). FAULT at step 136: a batch comes without one tag (all -100): the sum is 0 and so is every gradient; the
own clip divides each gradient by the whole norm, 0 / 0 is NaN.
Without Rangewatch: loss 449 to 248 at step 135, 0.0 at 136, NaN from 137.
Cause: clip or data. Step: 136. Right: clip / norm / zero / eps. Wrong: GradScaler, attention mask, lower the learning rate."""
EXPECT = {"cause": ["clip", "data", "eps"], "step": [135, 139], "place": None, "rank": None,
          "right": "(?i)clip|norm|zero|eps|divi", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6127); torch.set_num_threads(1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(60, 24)
        self.both = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(48, 5)

    def forward(self, ids):
        return self.tag(self.both(self.word(ids))[0])


def bounded(parameters, limit):
    norm = torch.stack([p.grad.norm() for p in parameters]).norm()
    for p in parameters:
        p.grad = p.grad / norm * norm.clamp(max=limit)
    return norm


def batch(step):
    ids = torch.randint(0, 60, (32, 15))
    tags = (ids + ids.roll(1, 1) // 20) % 5
    share = 0.0 if step == 136 else 0.6
    return ids, tags.masked_fill(torch.rand(32, 15) >= share, -100)


net = Tagger()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(190):
    ids, tags = batch(step)
    loss = F.cross_entropy(net(ids).flatten(0, 1), tags.flatten(), reduction="sum")
    optimizer.zero_grad()
    loss.backward()
    norm = bounded(list(net.parameters()), 50.0)
    optimizer.step()
    if step % 20 == 0 or step in (135, 136, 137, 189):
        print(step, loss.item(), "norm", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
