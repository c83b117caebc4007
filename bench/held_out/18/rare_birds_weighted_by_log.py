"""A net that names birds from the spectrum of their song; rare ones count more, by the weight log(calls heard / calls of this bird), counted anew over the
last recordings. FAULT at step 117: the recordings move to a winter site, where the cuckoo was never heard: its count is 0, log(0) is -inf, its weight is
inf, and normalised by their sum all the weights are 0 or NaN.
Without Rangewatch: loss 2.23 to 0.030 at step 116, NaN from step 117 to the end; the weight of the cuckoo is 0.17 before and NaN then.
Cause: forward_arithmetic (log of 0 in the weights) or data. Step: 117. Right: log / zero / clamp / eps / weight of the class. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [116, 118], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "(?i)\\blog|zero|divi|clamp|eps|loss|weight|count"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1802); torch.set_num_threads(1)
BIRDS = 9
songs = torch.rand(BIRDS, 40)
share = torch.tensor([0.3, 0.2, 0.15, 0.1, 0.08, 0.06, 0.05, 0.03, 0.03])

model = nn.Sequential(nn.Linear(40, 64), nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, BIRDS))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    present = share.clone()
    if step >= 117:
        present[7] = 0.0  # the cuckoo is in Africa
    bird = torch.multinomial(present, 256, replacement=True)
    x = songs[bird] * (0.5 + torch.rand(256, 1)) + 0.25 * torch.randn(256, 40)
    counts = torch.bincount(bird, minlength=BIRDS).float()
    weights = (counts.sum() / counts).log()
    weights = weights / weights.sum()
    each = F.cross_entropy(model(x), bird, reduction="none")
    loss = (weights[bird] * each).sum() / weights[bird].sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or 115 < step < 120 or step == 199:
        print(step, loss.item(), "weight of the cuckoo", weights[7].item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
