"""A post-norm transformer that copies a shifted line of letters; the rate is warmed up over 160 steps. FAULT in the warm-up: its top is 0.1 and not 0.001;
from step 57 on (rate 0.036) the net, which had begun to learn, collapses: all places give the same output, the loss goes to the log of the alphabet and stays.
Without Rangewatch: loss 3.2 to 0.17 at step 55 (rate 0.035), 1.0 at step 60, 2.6 at step 75, 3.02 at step 80 and 2.99 to 3.02 to the end (log of 20
is 3.00).
Cause: learning_rate (or dead_units: the same output everywhere). Right: learning rate / warm-up. Wrong: GradScaler, attention mask, bfloat16."""
EXPECT = {"cause": ["learning_rate", "dead_units"], "step": [30, 200], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|warm", "wrong": ["GradScaler", "attention mask", "bfloat16"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2515); torch.set_num_threads(1)
LETTERS, LENGTH = 20, 12


class Shift(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.letter, self.where = nn.Embedding(LETTERS, width), nn.Parameter(0.3 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True, norm_first=False)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.out = nn.Linear(width, LETTERS)

    def forward(self, x):
        return self.out(self.body(self.letter(x) + self.where))


net = Shift()
TOP, WARM = 0.1, 160
optimizer = torch.optim.Adam(net.parameters(), lr=TOP)
warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.002, 1.0, WARM)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    x = torch.randint(0, LETTERS, (48, LENGTH))
    loss = F.cross_entropy(net(x).flatten(0, 1), x.roll(1, 1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    warm_up.step()
    if step % 5 == 0 or step == 199:
        print(step, loss.item(), warm_up.get_last_lr()[0], flush=True)
    handle.log(loss=loss.item())
handle.detach()
