"""A dilated convolutional net in bfloat16 autocast that finds the place of a beat in an ECG. FAULT at step 130: a restart reads lr from another file, 0.4 in place of 0.004.
Without Rangewatch: loss 4.69 to 0.2 to 0.9 by step 129, 0.40 at step 130, 14.7 at step 131, 2,821 at step 133, 37,483 at step 140, 4.159 (ln 64) from step 160 on.
Cause: learning_rate. Step: 130. Right: learning rate. Wrong: GradScaler, mask, bfloat16 as the cause."""
EXPECT = {"cause": ["learning_rate"], "step": [129, 136], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2125)
torch.set_num_threads(1)


class Dilated(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.start = nn.Conv1d(1, width, 3, padding=1)
        self.steps = nn.ModuleList([nn.Conv1d(width, width, 3, padding=d, dilation=d) for d in (1, 2, 4)])
        self.end = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        h = self.start(x)
        for conv in self.steps:
            h = h + conv(F.elu(h))
        return self.end(F.elu(h)).squeeze(1)


def beats(n):
    where = torch.randint(4, 60, (n,))
    t = torch.arange(64)[None] - where[:, None]
    wave = 1.5 * torch.exp(-t.float() ** 2 / 2) - 0.6 * torch.exp(-(t.float() - 3) ** 2 / 3)
    drift = torch.sin(torch.arange(64) / 9 + 6.28 * torch.rand(n, 1))
    return (wave + drift + 0.5 * torch.randn(n, 64))[:, None], where


model = Dilated()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    if step == 130:
        optimizer.param_groups[0]["lr"] = 0.4
    x, where = beats(24)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = model(x)
    loss = F.cross_entropy(scores.float(), where)
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 135 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
