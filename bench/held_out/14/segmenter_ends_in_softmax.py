"""A per-pixel classifier ends in a softmax and is trained with nll_loss, which wants logarithms. FAULT from step 0 on.
Without Rangewatch: loss -0.32 at step 0, -0.60 at step 100, -0.71 at step 200: negative throughout.
Variant of: nll_loss_is_given_probabilities (here pixels).
Cause: forward_arithmetic. Step: from 0 on. Right: log / softmax / nll. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [0, 60], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"], "right": "log|softmax|nll|NLL|negative"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1419); torch.set_num_threads(1)
model = nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 3, 1), nn.Softmax(dim=1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x = torch.randn(8, 2, 12, 12)
    y = (x[:, 0] > 0.5).long() + (x[:, 1] > 0.3).long()
    loss = F.nll_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
