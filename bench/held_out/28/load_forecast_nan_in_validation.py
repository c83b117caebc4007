"""A temporal conv net that foretells electric load, validated each 40 steps on the last weeks. FAULT at the validation of step 120: the held-out weeks loaded then hold NaN (daylight saving
hour without a reading); the validation loss is NaN, the training itself is sound. ReduceLROnPlateau and the early stop look at that NaN.
Without Rangewatch: loss 0.67 to 0.0089, finite throughout; validation 0.050 at step 40, 0.014 at step 80, NaN at step 120, 0.012 at step 160.
Cause: eval or data. Step: 120. Right: NaN in the validation data. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["eval", "data", "(none)"], "step": [119, 161], "place": None, "rank": None, "least": "info",
          "right": "(?i)eval|valid|data|input|batch", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import math
import torch
from torch import nn
import rangewatch

torch.manual_seed(366); torch.set_num_threads(1)


class TCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.c3 = nn.Conv1d(1, 24, 3), nn.Conv1d(24, 24, 3, dilation=2), nn.Conv1d(24, 24, 3, dilation=4)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        h = torch.relu(self.c3(torch.relu(self.c2(torch.relu(self.c1(x[:, None]))))))
        return self.out(h[:, :, -1])[:, 0]


h = torch.arange(24 * 120.0)
load = torch.sin(h * math.pi / 12) + 0.4 * torch.sin(h * math.pi / 6 + 1) + 0.3 * torch.sin(h * math.pi / 84) + 0.08 * torch.randn(len(h))
held_out = [load[2300:2450].clone(), load[2450:2600].clone(), load[2600:2750].clone(), load[2700:2850].clone()]
held_out[2][74] = float("nan")


def windows(series, starts):
    w = torch.stack([series[s:s + 33] for s in starts])
    return w[:, :32], w[:, 32]


@torch.no_grad()
def validate(model, k):
    model.eval()
    x, y = windows(held_out[k], range(0, 110, 2))
    value = nn.functional.mse_loss(model(x), y).item()
    model.train()
    return value


model = TCN()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    if step % 40 == 0 and step:
        val = validate(model, step // 40 - 1)
        plateau.step(val)
        print("validation", step, val, flush=True)
        handle.log(val_loss=val)
    x, y = windows(load, torch.randint(0, 2250, (48,)).tolist())
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
