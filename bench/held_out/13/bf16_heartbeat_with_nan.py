"""A convolutional net, wholly in bfloat16, sorts heartbeats into five kinds. FAULT at step 100: an electrode came off, and one of 96 readings of one beat in
the batch is NaN in the bfloat16 input.
Without Rangewatch: loss 1.52 to 0.71 at step 99, NaN from step 100 on.
Variant of: bf16_nan_in_an_image.
Cause: data. Step: 100. Right: input / batch / data. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [99, 101], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "input|batch|data|sample|record"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1306); torch.set_num_threads(1)
KINDS = 5
beat = torch.randn(KINDS, 2, 12).repeat_interleave(8, 2)


class BeatNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 16, 7, stride=2, padding=3), nn.GroupNorm(4, 16), nn.ReLU(),
                                  nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.GroupNorm(4, 32), nn.ReLU())
        self.kind = nn.Linear(32, KINDS)

    def forward(self, x):
        return self.kind(self.body(x).mean(2))


def beats(n):
    y = torch.randint(0, KINDS, (n,))
    return (beat[y] + 1.2 * torch.randn(n, 2, 96)).bfloat16(), y


model = BeatNet().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y = beats(32)
    if step == 100:
        x[11, 1, 37] = float("nan")
    loss = F.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (99, 101):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
