"""A small table of loan applications (240 rows, 30 columns, most of them noise): a net with two layers of dropout 0.6 tells defaults, Adam, float32, evaluated each 40 steps.
FAULT at step 120: `validate` sets eval, and sets train again on its last line; but at the third evaluation the score is worse than the best and it returns before that line ("no new best, nothing to save"). The
dropout is off from there on; no one notices, as the training's loss looks better than ever.
Without Rangewatch: train loss 0.28 at step 119, 0.068 at 139, 0.007 at 219; held-out 0.53, 0.53, 0.58 at steps 40 to 120, then 0.70, 0.83, 0.94 (0.65, 0.72, 0.78 if train() is called).
Cause: eval. Step: 120. Right: train() after the evaluation / training mode. Wrong: GradScaler, lower the learning rate, NaN in the data."""
EXPECT = {"cause": ["eval"], "step": [119, 160], "place": None, "rank": None,
          "right": r"(?i)\.train\(\)|train mode|training mode|eval", "wrong": ["GradScaler", "[Ll]ower the learning rate", "[Mm]issing values"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(518)
torch.set_num_threads(1)
truth = torch.zeros(30)
truth[:5] = torch.tensor([1.2, -0.9, 0.8, 0.7, -1.1])


def applications(n):
    x = torch.randn(n, 30)
    return x, (x @ truth + 0.8 * x[:, 0] * x[:, 1] + 1.2 * torch.randn(n) > 0).float()


class Scorecard(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(30, 128)
        self.drop_a = nn.Dropout(0.6)
        self.middle = nn.Linear(128, 128)
        self.drop_b = nn.Dropout(0.6)
        self.risk = nn.Linear(128, 1)

    def forward(self, x):
        h = self.drop_a(F.relu(self.enter(x)))
        return self.risk(self.drop_b(F.relu(self.middle(h))))[:, 0]


train_x, train_y = applications(240)
held_x, held_y = applications(2000)
card = Scorecard()
adam = torch.optim.Adam(card.parameters(), lr=2e-3)
best = [9.0]


def validate(card):
    card.eval()
    with torch.no_grad():
        score = F.binary_cross_entropy_with_logits(card(held_x), held_y).item()
    if score >= best[0]:
        return score
    best[0] = score
    card.train()
    return score


handle = rangewatch.attach(card, adam)
for step in range(250):
    if step and step % 40 == 0:
        print(f"step {step}: held-out {validate(card):.4f}, best {best[0]:.4f}, in training mode {card.training}", flush=True)
    rows = torch.randint(0, 240, (48,))
    loss = F.binary_cross_entropy_with_logits(card(train_x[rows]), train_y[rows])
    adam.zero_grad()
    loss.backward()
    adam.step()
    if step % 20 == 19:
        print(step, f"train {loss.item():.4f}", flush=True)
    handle.log(loss=loss.item())
print(f"end: held-out {validate(card):.4f}")
handle.detach()
