"""A GRU adds up numbers with SGD. FAULT from step 0 on: clip_grad_norm_ stands between zero_grad and backward, so that it sees no gradient at all.
It does harm from step 100 on, where the sequences become longer: gradients in the hundreds go into the weights unclipped.
Without Rangewatch: loss 3.8 to 0.53 at step 99, 7358 at step 102 (gradient 286,000), NaN by step 120.
Variant of: clip_stands_before_the_backward (here a recurrent net with SGD).
Cause: clip. Step: from 0 on. Right: clip / backward / order / after. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["clip"], "step": [0, 200], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask"],
          "right": "clip|backward|order|after"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1414); torch.set_num_threads(1)


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.total = nn.RNN(2, 32, batch_first=True, nonlinearity="relu"), nn.Linear(32, 1)

    def forward(self, x):
        return self.total(self.read(x)[0][:, -1])[:, 0]


model = Adder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x = torch.rand(32, 10 if step < 100 else 30, 2)
    x[:, :, 1] = (x[:, :, 1] < 0.3).float()
    y = (x[:, :, 0] * x[:, :, 1]).sum(1)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 104:
        print(step, loss.item(), "gradient", sum(p.grad.norm() ** 2 for p in model.parameters()).sqrt().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
