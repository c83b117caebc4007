"""Diagnoses from lab values: a net of gated residual layers. FAULT from step 0 on: the values and the codes were shuffled each by a permutation of its own when
the set was prepared, so that the codes have nothing to do with the values. 7000 rows, each is seen once.
Without Rangewatch: loss 2.55 at step 0, 2.42 to 2.60 to the end (log of 12 is 2.48); with one permutation for both it falls to 0.03.
Variant of: loss_does_not_fall (labels that have nothing to do with the inputs).
Cause: data (that none is named will do). Step: any. Right: labels / targets / data / inputs / shuffle. Wrong: GradScaler, attention mask, clip."""
EXPECT = {"cause": ["data", "(none)"], "step": [0, 239], "place": None, "rank": None, "least": "info",
          "wrong": ["GradScaler", "attention mask"],
          "right": "label|target|data|input|shuffl|batch"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1213); torch.set_num_threads(1)
CODES, ROWS = 12, 240 * 30
profile = torch.randn(CODES, 20)
code = torch.randint(0, CODES, (ROWS,))
values = profile[code] + 0.7 * torch.randn(ROWS, 20)
values, code = values[torch.randperm(ROWS)], code[torch.randperm(ROWS)]  # one permutation was meant


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(F.glu(self.up(self.norm(x))))


model = nn.Sequential(nn.Linear(20, 48), Gated(48), Gated(48), nn.LayerNorm(48), nn.Linear(48, CODES))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, y = values[30 * step : 30 * step + 30], code[30 * step : 30 * step + 30]
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
