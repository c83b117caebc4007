"""A convolutional net estimates the age of trees from rings; HuberLoss. FAULT from step 0: the net answers with a column (48, 1), the ages are a row (48,): the
difference is broadcast to 48 times 48, each answer is drawn to the ages of all, and the net learns their median.
Without Rangewatch: loss 0.50 to 0.38 at 120 and 0.55 at the end, all answers within 0.01; with a row it is 0.01; torch warns of the sizes.
Variant of: row_of_predictions_against_a_column_of_targets.
Cause: data or forward_arithmetic (the shapes in the loss). Step: from the start. Right: shape / broadcast / squeeze / size. Wrong: rate, GradScaler, mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [0, 130], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "shape|broadcast|squeeze|size|column|\\brow"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1325); torch.set_num_threads(1)


class RingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.rings = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 16, 5, padding=2), nn.ReLU())
        self.age = nn.Linear(16, 1)

    def forward(self, x):
        return self.age(self.rings(x).mean(2))


def cores(n):
    age = torch.randn(n)
    way = torch.linspace(0, 1, 48)
    return torch.sin((14 + 5 * age[:, None]) * way + 6.28 * torch.rand(n, 1))[:, None] + 0.1 * torch.randn(n, 1, 48), age


model = RingNet()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
criterion = nn.HuberLoss()
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, age = cores(48)
    loss = criterion(model(x), age)  # meant: model(x)[:, 0]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "spread of the answers", model(x).std().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
