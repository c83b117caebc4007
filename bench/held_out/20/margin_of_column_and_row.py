"""A net that tells rye from wheat by near infrared, with the logistic loss written by hand: softplus(-logit * label), labels of -1 and 1. FAULT from the
start: logits are a column (n, 1), labels a row (n); the product is (n, n), each logit with each label. The net learns the share of rye and nothing else.
Without Rangewatch: loss 0.46 to 0.69 at all times, right is the share of wheat; with logit[:, 0] the loss is 0.005 and all are right.
Cause: forward_arithmetic (broadcasting), or data; none that has a name. Step: 0. Right: shape / broadcast / squeeze.
Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data", "", "(none)"], "step": [0, 180], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "(?i)shape|broadcast|squeeze|label|target", "least": "info"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2026); torch.set_num_threads(1)
rye, wheat = torch.randn(2, 50)


class Grain(nn.Module):
    def __init__(self):
        super().__init__()
        self.smooth = nn.Conv1d(1, 6, 7, stride=2)
        self.judge = nn.Sequential(nn.Linear(132, 40), nn.ReLU(), nn.Linear(40, 1))

    def forward(self, x):
        return self.judge(F.relu(self.smooth(x[:, None])).flatten(1))


model = Grain()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    label = (torch.rand(56) < 0.3).float() * 2 - 1
    x = torch.where(label[:, None] > 0, rye, wheat) * 0.6 + torch.randn(56, 50)
    logit = model(x)
    loss = F.softplus(-logit * label).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        right = ((logit[:, 0] > 0) == (label > 0)).float().mean().item()
        print(step, loss.item(), "right", right, "share of wheat", (label < 0).float().mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
