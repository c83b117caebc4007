"""A residual net over a table of facts says who pays a loan back. What is missing is 0 with a flag. FAULT at step 100: another export of the table
writes 1000000 (a million) where a value is missing, and the flag is still set: one number in twelve of the input is a million.
Without Rangewatch: loss 0.70 to 0.24 at step 99, 456597 at step 100, 262000 at step 102, 1333 at the end.
Causes: data. Right: the input / range of the batch, missing values. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [99, 103], "place": None, "rank": 0,
          "right": "(?i)data|input|batch|outlier|missing|feature", "wrong": ["GradScaler", "attention mask", "[Rr]aise the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2227); torch.set_num_threads(1)


class Loans(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(36, 64)
        self.mid = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.PReLU(), nn.Linear(64, 64)) for _ in range(3))
        self.leave = nn.Linear(64, 1)

    def forward(self, x):
        h = self.enter(x)
        for block in self.mid:
            h = h + block(h)
        return self.leave(h)[:, 0]


rule = torch.randn(18)
model = Loans()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
handle = rangewatch.attach(model, optimizer)
for step in range(190):
    facts = torch.randn(128, 18)
    pays = ((facts * rule).sum(1) + facts[:, 0] * facts[:, 1] > 0).float()
    gone = torch.rand(128, 18) < 1 / 12
    x = torch.cat((facts.masked_fill(gone, 0.0 if step < 100 else 1e6), gone.float()), 1)
    loss = F.binary_cross_entropy_with_logits(model(x), pays)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 98 < step < 104 or step == 189:
        print(step, loss.item(), flush=True)
handle.detach()
