"""A small decoder that goes on with melodies; its attention has a bias by distance (ALiBi) with -inf above the diagonal, and is well. FAULT at step 110:
the warm restart sets the rate of SGD to 6 instead of 0.06; gradients explode in a step or two.
Without Rangewatch: loss 3.24 to 1.02 at step 110, 106 at step 111, 5.6e8 at step 112 (gradient norm 6e7), NaN from step 113 on.
Cause: learning_rate (or clip, backward_arithmetic: exploding gradients). Step: 110. Right: learning rate / clip. Wrong: attention mask, GradScaler."""
EXPECT = {"cause": ["learning_rate", "clip", "backward_arithmetic"], "step": [109, 114], "place": None, "rank": 0,
          "wrong": ["(?i)attention mask", "GradScaler", "(?i)fully masked", "alibi"],
          "right": "(?i)learning rate|rate|clip|lr"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2019); torch.set_num_threads(1)
NOTES, LONG, WIDE, HEADS = 24, 20, 32, 4


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDE)
        self.qkv, self.mix = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        slopes = 2.0 ** -(torch.arange(HEADS) + 1.0)
        back = torch.arange(LONG)[None, :] - torch.arange(LONG)[:, None]
        bias = slopes[:, None, None] * back
        self.register_buffer("alibi", bias.masked_fill(back > 0, float("-inf")))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(2, (3, HEADS, WIDE // HEADS)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(2, 3) / (WIDE // HEADS) ** 0.5 + self.alibi
        return x + self.mix((scores.softmax(3) @ v).transpose(1, 2).flatten(2))


class Melody(nn.Module):
    def __init__(self):
        super().__init__()
        self.note = nn.Embedding(NOTES, WIDE)
        self.body = nn.Sequential(Attend(), nn.Linear(WIDE, WIDE), nn.ReLU(), Attend())
        self.next = nn.Linear(WIDE, NOTES)

    def forward(self, x):
        return self.next(self.body(self.note(x)))


def melodies(n):
    start, leap = torch.randint(0, NOTES, (n, 1)), torch.randint(1, 6, (n, 1))
    return (start + leap * torch.arange(LONG + 1) + (torch.rand(n, LONG + 1) < 0.05)) % NOTES


model = Melody()
optimizer = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    optimizer.param_groups[0]["lr"] = 0.06 * (1 - 0.8 * step / 110) if step < 110 else 6.0
    tune = melodies(32)
    loss = F.cross_entropy(model(tune[:, :-1]).flatten(0, 1), tune[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    norm = sum(p.grad.square().sum() for p in model.parameters()) ** 0.5
    optimizer.step()
    if step % 20 == 0 or 108 < step < 116 or step == 199:
        print(step, loss.item(), "gradient norm", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
