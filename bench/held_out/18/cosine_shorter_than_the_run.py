"""A net demodulates symbols from a noisy radio channel; CosineAnnealingLR. FAULT from step 80 on: T_max is 80, the length of an older run, but this one
has 160 steps: after step 80 the rate climbs back along the cosine to its full height, where the training ends.
Without Rangewatch: mean loss 0.121 at step 79 (rate 0), 0.072 at step 119, 0.098 at step 139, 0.150 at step 159 (rate 0.25); with T_max 160 it is 0.080 at
the end.
Cause: learning_rate. Step: 80 to the end. Right: T_max / scheduler / cosine / learning rate. Wrong: GradScaler, mask, float16."""
EXPECT = {"cause": ["learning_rate"], "step": [78, 160], "place": None, "rank": 0, "least": "info",
          "wrong": ["GradScaler", "attention mask", "float16"],
          "right": "(?i)schedul|T_max|cosine|learning rate|\\blr\\b"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1809); torch.set_num_threads(1)
SYMBOLS = 8
shape = torch.randn(SYMBOLS, 2, 24)
echo = torch.tensor([0.1, 0.5, 1.0])[None, None]

model = nn.Sequential(
    nn.Conv1d(2, 24, 5), nn.GroupNorm(4, 24), nn.Hardswish(), nn.Conv1d(24, 24, 5, stride=2), nn.GroupNorm(4, 24), nn.Hardswish(),
    nn.Flatten(), nn.Linear(24 * 8, SYMBOLS),
)
EPOCHS_STEPS = 80
optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.8)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS_STEPS)
handle = rangewatch.attach(model, optimizer)
mean = 2.0
for step in range(160):
    symbol = torch.randint(0, SYMBOLS, (24,))
    wave = F.conv1d(F.pad(shape[symbol].flatten(0, 1)[:, None], (1, 1)), echo).view(24, 2, 24)
    loss = F.cross_entropy(model(wave + 1.6 * torch.randn(24, 2, 24)), symbol)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    mean = 0.9 * mean + 0.1 * loss.item()
    if step % 20 == 19:
        print(step, "mean loss", mean, "rate", scheduler.get_last_lr()[0], flush=True)
    handle.log(loss=loss.item())
handle.detach()
