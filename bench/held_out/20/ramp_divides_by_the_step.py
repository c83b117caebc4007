"""A recurrent net that adds up the marked numbers of a row. FAULT from the start: the warm-up of 40 steps is the wrong way round: the rate is multiplied by
40 / (step + 1) instead of (step + 1) / 40; Adam begins with 0.2, and the net saturates before it has learned anything.
Without Rangewatch: loss 3.4, 41 at step 1, 0.99 at step 20, 0.73 at the end; the right way round it is 0.115 at the end.
Cause: learning_rate. Step: 0 to 20. Right: learning rate / warm-up. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["learning_rate", "dead_units"], "step": [0, 40], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "(?i)learning rate|warm|rate|lr"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2021); torch.set_num_threads(1)


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.LSTM(2, 40, num_layers=2, batch_first=True)
        self.tell = nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))

    def forward(self, x):
        return self.tell(self.read(x)[0][:, -1])[:, 0]


model = Adder()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 40 / (step + 1) if step < 40 else 1.0)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    value, mark = torch.rand(64, 8), (torch.rand(64, 8) < 0.4).float()
    loss = F.mse_loss(model(torch.stack((value, mark), 2)), (value * mark).sum(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 6 or step == 219:
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    schedule.step()
    handle.log(loss=loss.item())
handle.detach()
