"""Fine-tuning a pretrained encoder of masked spectra with layer-wise rate decay (0.45 a layer), a new head on top. FAULT from step 0: layers are
counted from the output, but the power from the input: the stem has the full rate and the new head 2e-3 * 0.45 ** 7, some 250 times less, and hardly
moves. Without Rangewatch: loss 2.31 to 1.64; the head has moved by 0.0019 at most after 240 steps.
Report: google-research/electra#51 (the depth in layer-wise decay is off; the last layer's rate is too low), facebookresearch/mae#177 (which end is
the smaller one).
Cause: learning rate (of groups), or an optimizer whose updates of the head are next to none. Place: head. Right: rate / group / layer decay. Wrong:
lower the learning rate, data, mask, GradScaler."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [0, 100], "place": r"head.*|(blocks\.[45]).*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "leave out samples", "[Mm]ask"],
          "right": "rate|group|decay"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(524); torch.set_num_threads(1)
D = 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix, self.mlp = nn.LayerNorm(D), nn.Conv1d(D, D, 3, padding=1, groups=D), nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def forward(self, x):
        h = self.norm(x)
        return x + self.mlp(self.mix(h.transpose(1, 2)).transpose(1, 2))


class Encoder(nn.Module):
    def __init__(self, out):
        super().__init__()
        self.stem, self.blocks, self.norm, self.head = nn.Linear(12, D), nn.Sequential(*[Block() for _ in range(6)]), nn.LayerNorm(D), nn.Linear(D, out)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.stem(x))))


kinds = torch.randn(10, 16, 12)
model = Encoder(12)
before = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _ in range(60):  # the pretraining: fill in masked frames
    x = kinds[torch.randint(0, 10, (32,))] + 0.7 * torch.randn(32, 16, 12)
    hidden = torch.rand(32, 16, 1) < 0.3
    loss = F.mse_loss(model(x * ~hidden), x)
    before.zero_grad()
    loss.backward()
    before.step()
model.head = nn.Linear(D, 10)
model.zero_grad()


def depth(name):
    if name.startswith("stem"):
        return 0
    return int(name.split(".")[1]) + 1 if name.startswith("blocks") else 7


groups = [{"params": [p], "lr": 2e-3 * 0.45 ** depth(n)} for n, p in model.named_parameters()]
optimizer = torch.optim.AdamW(groups, lr=2e-3)
handle = rangewatch.attach(model, optimizer)
first = model.head.weight.detach().clone()
for step in range(240):
    y = torch.randint(0, 10, (32,))
    loss = F.cross_entropy(model(kinds[y] + 1.5 * torch.randn(32, 16, 12)).mean(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "head moved", (model.head.weight - first).abs().max().item(), flush=True)
handle.detach()
