"""Churn of telecom customers from an exported table (8 numbers, 2 categories), AdamW, read in order of the months.
FAULT at step 131: from row 8405 the export has empty cells in column `tenure` (NaN after parsing) for a few customers; nothing fills them.
Without Rangewatch: loss 0.70 to 0.28 at step 130, NaN at 131 and ever after (with the cells filled by 0: 0.2 to the end).
Cause: data (NaN in the inputs). Step: 131. Right: look at the batch's inputs, fill or drop the missing cells.
Wrong: lower the learning rate, GradScaler, clip the gradients, eps of the optimizer."""
EXPECT = {"cause": ["data"], "step": [130, 133], "place": None, "rank": None,
          "right": r"(?i)input|data|batch|missing|nan.*(cell|row|column)", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import csv
import io
import random
import torch
from torch import nn
import rangewatch

torch.manual_seed(77); random.seed(77); torch.set_num_threads(1)
BATCH = 64
buf = io.StringIO()
out = csv.writer(buf)
for i in range(14000):
    nums = [random.gauss(0, 1) for _ in range(8)]
    plan, region = random.randrange(4), random.randrange(6)
    z = 1.5 * nums[0] - nums[3] * nums[1] + (0.8 if plan == 2 else -0.3) + 0.4 * (region == 5)
    cells = [f"{v:.4f}" for v in nums]
    if i >= 8405 and i % 23 == 10:
        cells[3] = ""
    out.writerow(cells + [plan, region, int(z + random.gauss(0, 0.5) > 0)])
buf.seek(0)
rows = [r for r in csv.reader(buf)]
to_float = lambda s: float(s) if s else float("nan")
numeric = torch.tensor([[to_float(c) for c in r[:8]] for r in rows])
cats = torch.tensor([[int(r[8]), int(r[9])] for r in rows])
churned = torch.tensor([float(r[10]) for r in rows])


class TabNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.plan_table, self.region_table = nn.Embedding(4, 4), nn.Embedding(6, 4)
        self.num_proj = nn.Linear(8, 32)
        self.trunk = nn.Sequential(nn.LayerNorm(40), nn.Linear(40, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU())
        self.out = nn.Linear(96, 1)

    def forward(self, num, cat):
        h = torch.cat([self.num_proj(num), self.plan_table(cat[:, 0]), self.region_table(cat[:, 1])], 1)
        return self.out(self.trunk(h)).squeeze(1)


model = TabNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(len(rows) // BATCH):
    sl = slice(step * BATCH, (step + 1) * BATCH)
    loss = nn.functional.binary_cross_entropy_with_logits(model(numeric[sl], cats[sl]), churned[sl])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 129 < step < 134:
        print(step, f"{loss.item():.4f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
