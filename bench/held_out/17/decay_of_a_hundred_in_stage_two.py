"""A transformer layer that says of each note of a bar whether it is out of tune. FAULT at step 100: the second stage of the training begins with a new
AdamW, whose settings have lost a comma: weight_decay 100 in place of 0.100; each step takes a third of each weight away.
Without Rangewatch: loss 0.92 to 0.0038 at step 100, 0.15 at step 101, 0.47, 0.66 at step 105, 0.690 (the log of 2) from step 120 to the end; the size
of the weights goes from 14 to 0.49 at step 110.
Cause: regularization or optimizer (weight decay), weight. Step: 100 to 110. Right: weight decay / shrink / weights. Wrong: GradScaler, mask, NaN."""
EXPECT = {"cause": ["regularization", "optimizer", "weight"], "step": [99, 110], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "decay|shrink|shrunk|regulari|norm of the weight|collaps"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1616); torch.set_num_threads(1)


class Tuner(nn.Module):
    def __init__(self):
        super().__init__()
        self.note = nn.Linear(2, 32)
        self.bar = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.off = nn.Linear(32, 1)

    def forward(self, x):
        return self.off(self.bar(self.note(x)))[..., 0]


def bars(n):
    """The instrument as a whole may be high or low: a note is out of tune against the others."""
    pitch = 0.5 * torch.randn(n, 1) + 0.05 * torch.randn(n, 8)
    off = (torch.rand(n, 8) < 0.25).float()
    return torch.stack((pitch + 0.8 * off, torch.rand(n, 8)), 2), off


model = Tuner()
first = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
second = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=100)
handle = rangewatch.attach(model, [first, second])
for step in range(200):
    optimizer = first if step < 100 else second
    x, off = bars(48)
    loss = F.binary_cross_entropy_with_logits(model(x), off)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (99, 101, 102, 105, 110, 199):
        size = sum((p ** 2).sum() for p in model.parameters()).sqrt().item()
        print(step, loss.item(), "size of the weights", size, flush=True)
    handle.log(loss=loss.item())
handle.detach()
