"""A transformer layer sorts short lists (it says the rank of each number); AdamW with a warm-up of 60 steps. FAULT from the first step on: the factor is
warm_up / (step + 1) instead of (step + 1) / warm_up: the first rate is 0.09, sixty times the rate to which it should have climbed, and it comes down from
there.
Without Rangewatch: loss 2.13 at step 0, 3.24 at step 3, 1.59 at step 60 and 1.29 at the end; with a warm-up the right way round it is 0.30 at the end.
Cause: learning_rate. Step: 0 to 15. Right: learning rate / warm-up / scheduler. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 15], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "(?i)learning rate|warm|schedul|\\blr\\b"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1814); torch.set_num_threads(1)
LENGTH, WIDTH, WARM_UP = 8, 48, 60


class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.number = nn.Linear(1, WIDTH)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, 96, dropout=0.0, batch_first=True) for _ in range(2))
        self.place = nn.Linear(WIDTH, LENGTH)

    def forward(self, x):
        h = self.number(x[..., None])
        for layer in self.layers:
            h = layer(h)
        return self.place(h)


def factor(step):
    return WARM_UP / (step + 1) if step < WARM_UP else 1.0


model = Sorter()
optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    x = torch.randn(48, LENGTH)
    loss = F.cross_entropy(model(x).flatten(0, 1), x.argsort(1).argsort(1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 6 or step == 179:
        print(step, loss.item(), "rate", scheduler.get_last_lr()[0], flush=True)
    scheduler.step()
    handle.log(loss=loss.item())
handle.detach()
