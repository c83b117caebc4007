"""A 1-D convolutional net with batch norm names movements from an accelerometer, with a validation each 25 steps. FAULT at step 110: one batch comes
in raw counts (times 1e8). Batch norm hides it in training, and its running statistics are spoilt for the rest of the run.
Without Rangewatch: loss 0.0007 to 0.003 throughout, 0.0017 at step 110; in validation 0.0015 and all right at step 99, 2.06 and 0.19 right
at step 124, no better at step 224.
Variant of: batch_of_1e8_poisons_batchnorm (there pictures, here signals).
Cause: data (or eval: the statistics that the evaluation uses). Step: 110. Right: batch / input / scale / running statistics. Wrong: rate, GradScaler,
mask."""
EXPECT = {"cause": ["data", "eval"], "step": [109, 140], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "batch|input|data|scale|unit|running|statistics"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1401); torch.set_num_threads(1)
MOVES = 5
shape = torch.randn(MOVES, 3, 32)


def strips(n):
    y = torch.randint(0, MOVES, (n,))
    return shape[y] + 1.2 * torch.randn(n, 3, 32), y


model = nn.Sequential(nn.Conv1d(3, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2),
                      nn.Conv1d(16, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.Flatten(), nn.Linear(512, MOVES))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, y = strips(32)
    if step == 110:
        x = 1e8 * x
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 24:
        model.eval()
        with torch.no_grad():
            x, y = strips(128)
            out = model(x)
        model.train()
        print(step, loss.item(), "validation", F.cross_entropy(out, y).item(), "right", (out.argmax(1) == y).float().mean().item(), flush=True)
    elif 107 < step < 113:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
