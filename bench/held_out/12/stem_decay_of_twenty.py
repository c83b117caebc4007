"""Handwriting strokes by a net of tanh convolutions, SGD at 0.1. FAULT from step 100 on: the decay of the stem's group is raised from 0.002 to 20
(a percent and a factor were mixed up). Rate times decay is 2, so that each step makes -w of w: the stem's weights change their sign at each step.
Without Rangewatch: loss 1.95 to 0.24 at step 99, 0.27, 7.4, 0.30, 7.8 at steps 100 to 103, 2.2 at the end; the stem's norm is 3.0 to 3.4.
Variant of: weight_decay_turns_a_weight_over_at_each_step.
Cause: optimizer (learning_rate would do). Step: 100. Place: stem. Right: weight decay / weight_decay. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["optimizer", "learning_rate"], "step": [99, 105], "place": ".*stem.*", "rank": None,
          "wrong": ["GradScaler", "attention mask"],
          "right": "decay"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1227); torch.set_num_threads(1)
LETTERS = 7
pen = torch.randn(LETTERS, 2, 20)


class Strokes(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(2, 24, 5, padding=2)
        self.body = nn.Conv1d(24, 32, 5, padding=2)
        self.letter = nn.Linear(32 * 5, LETTERS)

    def forward(self, x):
        h = torch.tanh(self.body(torch.tanh(self.stem(x))))
        return self.letter(F.avg_pool1d(h, 4).flatten(1))


model = Strokes()
rest = [*model.body.parameters(), *model.letter.parameters()]
optimizer = torch.optim.SGD([{"params": model.stem.parameters(), "weight_decay": 0.002}, {"params": rest}], lr=0.1)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 100:
        optimizer.param_groups[0]["weight_decay"] = 20.0
    y = torch.randint(0, LETTERS, (32,))
    loss = F.cross_entropy(model(pen[y] + 1.2 * torch.randn(32, 2, 20)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 99 <= step <= 104 or step == 219:
        print(step, loss.item(), "a weight", model.stem.weight[0, 0, 0].item(), "norm", model.stem.weight.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
