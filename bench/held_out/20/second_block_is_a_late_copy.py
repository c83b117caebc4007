"""A net of gated convolution blocks that tells where in a gene the exons end. FAULT from the start: the optimizer is made for a net of one block; then the
block is copied twice on top of itself to make it deeper. The copies are trained by nobody.
Without Rangewatch: loss 0.67 to 0.131; with an optimizer that is made after the copies it falls to 0.024.
Cause: optimizer (parameters that it does not hold), or no_gradient. Step: 0. Place: blocks 1 and 2. Right: optimizer / param group / not in.
Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["optimizer", "no_gradient"], "step": [0, 160], "place": r".*blocks?\.?[12].*|.*copy.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "(?i)optimi[sz]er|param.?group|add_param"}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2012); torch.set_num_threads(1)


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.both = nn.Conv1d(width, 2 * width, 5, padding=2)

    def forward(self, x):
        value, gate = self.both(self.norm(x)).chunk(2, 1)
        return x + value * torch.sigmoid(gate)


class Exons(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.lift = nn.Conv1d(4, width, 3, padding=1)
        self.blocks = nn.ModuleList([Gated(width)])
        self.end = nn.Conv1d(width, 2, 1)

    def forward(self, x):
        h = self.lift(x)
        for block in self.blocks:
            h = block(h)
        return self.end(h)


def genes(n):
    """A place is an end where G T follows and the letter six places before is an A."""
    letters = torch.randint(0, 4, (n, 60))
    y = (letters.roll(-1, 1) == 2) & (letters.roll(-2, 1) == 3) | (letters.roll(6, 1) == 0) & (letters == 1)
    return F.one_hot(letters, 4).float().transpose(1, 2), y.long()


model = Exons()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(2):
    model.blocks.append(copy.deepcopy(model.blocks[0]))
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = genes(24)
    loss = F.cross_entropy(model(x), y)
    model.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        first, second = (b.both.weight[0, 0, 0].item() for b in (model.blocks[0], model.blocks[1]))
        print(step, loss.item(), "a weight of block 0", first, "of block 1", second, flush=True)
    handle.log(loss=loss.item())
handle.detach()
