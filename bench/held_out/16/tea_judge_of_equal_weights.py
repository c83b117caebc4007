"""A net of two hidden layers that grades tea by twelve measures, on a rule that needs products of measures. FAULT at step 0: a recipe for reproducible starts
sets each weight to 0.05 and each bias to 0; all units of a layer are the same, get the same gradient and stay the same, so that a layer is one unit wide.
Without Rangewatch: loss 1.61 to 1.26 at step 80 and 1.23 to 1.33 from there on, the units differ by 0.0; with the usual start it is 0.27 to 0.38 at the end.
Cause: weight (the start is symmetric). Step: 0, or later where the loss stands. Right: initialisation / same / constant / symmetric / identical.
Wrong: GradScaler, mask, clip."""
EXPECT = {"cause": ["weight"], "step": [0, 239], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "clip_grad"],
          "right": "initiali|same|constant|symmetr|identical|equal"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1605); torch.set_num_threads(1)
rule = torch.randn(12, 5)


def teas(n):
    x = torch.randn(n, 12)
    return x, (x @ rule + 2 * x[:, :5] * x[:, 5:10]).argmax(1)


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.taste = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.grade = nn.Linear(64, 5)

    def forward(self, x):
        return self.grade(self.taste(x))


model = Judge()
for name, p in model.named_parameters():
    nn.init.constant_(p, 0.05 if name.endswith("weight") else 0.0)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, y = teas(128)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        unlike = model.taste[0].weight.std(0).max().item()
        print(step, loss.item(), "largest difference between units", unlike, flush=True)
    handle.log(loss=loss.item())
handle.detach()
