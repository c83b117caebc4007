"""A convolutional net tells rocks from mines by their echoes, NAdam. FAULT from step 0: the rate is 3e-9 (3e-3 was meant): all gradients are well,
nothing moves.
Without Rangewatch: loss 0.75 at step 0, 0.76 at 120, 0.83 at the end; at 3e-3 it is 0.0002.
Variant of: rate_of_adamw_is_1e_9.
Cause: learning_rate (or optimizer: weights do not change). Step: from the start. Right: learning rate / optimizer. Wrong: lower the learning rate,
GradScaler, mask."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [0, 130], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "learning rate|\\blr\\b"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1324); torch.set_num_threads(1)
echo = torch.randn(2, 1, 16).repeat_interleave(3, 2)


class SonarNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.near, self.far = nn.Conv1d(1, 16, 5, padding=2), nn.Conv1d(16, 24, 5, padding=2, stride=2)
        self.norm, self.mine = nn.BatchNorm1d(24), nn.Linear(24 * 24, 2)

    def forward(self, x):
        return self.mine(F.relu(self.norm(self.far(F.relu(self.near(x))))).flatten(1))


def echoes(n):
    y = torch.randint(0, 2, (n,))
    return echo[y] + 0.9 * torch.randn(n, 1, 48), y


model = SonarNet()
optimizer = torch.optim.NAdam(model.parameters(), lr=3e-9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y = echoes(32)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
