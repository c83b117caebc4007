"""A price model on tabular data, AdamW. For 100 steps the loop is right; FAULT from step 100 on: the second phase uses another helper in which
zero_grad stands between backward and step, so that every step sees no gradient. The loss stands still, nothing is NaN, nothing moves.
Without Rangewatch: loss 1.65 to 0.12 at step 100, 0.10 to 0.18 without a trend after; the weights are the same to the last bit from step 100 on.
Report: patrickloeber/pytorchTutorial#19 (where zero_grad belongs), Han-Jia/UNICORN-MAML#7 (zero_grad after the backward), rll/deepul#12.
Cause: optimizer (or no_gradient). Step: 100. Right: zero_grad / order / gradient / step. Wrong: learning rate lower, GradScaler, mask, clip."""
EXPECT = {"cause": ["optimizer", "no_gradient"], "step": [100, 160], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "zero_grad|no gradient|gradient|order|step|update|optimizer|not (change|move|train)"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(713); torch.set_num_threads(1)
CATEGORIES = 12
teacher = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
district = torch.randn(CATEGORIES)


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.district = nn.Embedding(CATEGORIES, 8)
        self.mlp = nn.Sequential(nn.Linear(28, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x, c):
        return self.mlp(torch.cat([x, self.district(c)], 1)).squeeze(-1)


def rows(n=64):
    x, c = torch.randn(n, 20), torch.randint(0, CATEGORIES, (n,))
    with torch.no_grad():
        y = 3 * teacher(x).squeeze(-1) + district[c] + 0.05 * torch.randn(n)
    return x, c, y


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def finetune_step(loss):
    loss.backward()
    optimizer.zero_grad()  # before the step, so there is nothing to step with
    optimizer.step()


model = Tabular()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x, c, y = rows()
    loss = F.mse_loss(model(x, c), y)
    (train_step if step < 100 else finetune_step)(loss)
    if step % 20 == 0:
        print(step, loss.item(), model.mlp[0].weight.abs().sum().item(), flush=True)
handle.detach()
