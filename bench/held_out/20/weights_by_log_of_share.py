"""A net that marks which of six defects a weld has (several may be true); a positive label counts by -log of the share of that defect in the batch. FAULT at
step 100: no weld in the batch has cracks; -log(0) is inf, and inf times a label of 0 is NaN.
Without Rangewatch: loss 0.74 to 0.085 at step 99, NaN from step 100 on.
Cause: forward_arithmetic (a log of 0 in the loss), or data (a class is missing). Step: 100. Right: log / loss / clamp / epsilon / class.
Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [99, 101], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "(?i)log|loss|clamp|epsilon|eps|class|label|target|batch"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2013); torch.set_num_threads(1)
signature = torch.randn(6, 36)
share = torch.tensor([0.5, 0.4, 0.35, 0.3, 0.25, 0.2])


class Welds(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(36, 72), nn.BatchNorm1d(72), nn.ELU())
        self.defects = nn.Linear(72, 6)

    def forward(self, x):
        return self.defects(self.stem(x))


model = Welds()
optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    y = (torch.rand(64, 6) < share).float()
    if step == 100:
        y[:, 5] = 0.0
    x = y @ signature + 1.2 * torch.randn(64, 36)
    logits = model(x)
    weight = -torch.log(y.mean(0))
    loss = -(weight * y * F.logsigmoid(logits) + (1 - y) * F.logsigmoid(-logits)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 103 or step == 199:
        print(step, loss.item(), "weights", [round(w, 2) for w in weight.tolist()], flush=True)
    handle.log(loss=loss.item())
handle.detach()
