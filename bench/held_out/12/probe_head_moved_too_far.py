"""Fine-tuning of a pretrained net of sensors to new machines, two groups: the body at 1e-4, the head at 3e-3. FAULT at step 85: the head is given a rate of
its own for the next phase, 3 in place of 3e-4 (a typing error that is mended three steps later): the last layer moves by many times its norm.
Without Rangewatch: loss 1.74 to 1.32 at step 84, 1.45 at 85, 29 at 86, 4.6 at the end; the head's norm is 2.0, 36 after three steps.
Variant of: tuned_with_its_last_layer_moved_too_far.
Cause: learning_rate (weight). Step: 85. Place: the head. Right: rate / head / group / last layer. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate", "weight"], "step": [84, 88], "place": ".*head.*", "rank": 0,
          "wrong": ["GradScaler", "attention mask"],
          "right": "rate|group|schedul"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1224); torch.set_num_threads(1)
STATES = 6
hum = torch.randn(2, STATES, 4, 24)


class Sensors(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(4, 24, 5, padding=2), nn.BatchNorm1d(24), nn.ReLU(), nn.MaxPool1d(2),
                                  nn.Conv1d(24, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU())
        self.head = nn.Linear(32, STATES)

    def forward(self, x):
        return self.head(self.body(x).mean(2))


def machines(which):
    y = torch.randint(0, STATES, (32,))
    return hum[which, y] + 1.2 * torch.randn(32, 4, 24), y


model = Sensors()
early = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(150):  # the pretraining
    x, y = machines(0)
    early.zero_grad()
    F.cross_entropy(model(x), y).backward()
    early.step()
model.head.reset_parameters()
optimizer = torch.optim.AdamW([{"params": model.body.parameters(), "lr": 1e-4}, {"params": model.head.parameters(), "lr": 3e-3}])
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 85:
        optimizer.param_groups[1]["lr"] = 3.0  # 3e-4 was meant
    if step == 88:
        optimizer.param_groups[1]["lr"] = 3e-4
    x, y = machines(1)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (84, 85, 86, 87, 88, 89, 219):
        print(step, loss.item(), model.head.weight.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
