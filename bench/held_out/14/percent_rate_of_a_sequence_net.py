"""A GRU counts signs with Adam. FAULT from step 100 on: the second stage of the schedule sets the rate to 1 instead of 0.001.
Without Rangewatch: loss 12.3 to 1.2 at step 99, 9.1 at step 102, 37 at step 103, 1.6 to 6 to the end.
Variant of: rate_is_raised_to_1 (here in the second stage of a recurrent net).
Cause: learning_rate. Step: 100. Right: learning rate / schedule. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate"], "step": [99, 130], "place": None, "rank": 0, "wrong": ["GradScaler", "attention mask"],
          "right": "learning rate|rate|schedul"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1421); torch.set_num_threads(1)
rnn, out = nn.GRU(4, 32, batch_first=True), nn.Linear(32, 1)
model = nn.ModuleDict({"rnn": rnn, "out": out})
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    optimizer.param_groups[0]["lr"] = 3e-3 if step < 100 else 1.0
    signs = torch.randint(0, 4, (32, 12))
    loss = F.mse_loss(out(rnn(F.one_hot(signs, 4).float())[0][:, -1])[:, 0], (signs == 2).sum(1).float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 104:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
