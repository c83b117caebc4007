"""A net that separates a voice from hum by attention over frames, in float16 autocast with a GradScaler. FAULT at step 120: recordings of a second
microphone come, a hundred times as loud; query times key is divided by the root of the width only after the product, which exceeds 65504 in float16:
inf, and the softmax of inf is NaN. The scaler skips each step from then on and halves its scale; the weights stand.
Without Rangewatch: loss 0.25 to 0.0020 at step 119, NaN from step 120 on, the scale falls from 1024 to 8e-34; in float32 it is 2.7 at the end.
Report: motional/nuplan-devkit#91 (overflow of a sum in FP16), huggingface/transformers#12225 (a layer gives inf beyond 65504), pytorch/pytorch#43556.
Cause: forward_arithmetic (overflow of float16; the scale only follows) or data (the loud recordings). Step: 120. Right: float16 / overflow / 65504 /
scale the query first. Wrong: lower the learning rate, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [119, 121], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask"],
          "right": "float16|fp16|half|overflow|65504|float32|input"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1012); torch.set_num_threads(1)
time = torch.arange(128) / 128


class Separator(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.frame, self.place = nn.Linear(8, width), nn.Parameter(0.1 * torch.randn(16, width))
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, 8)

    def forward(self, x):
        h = self.frame(x.unflatten(1, (16, 8))) + self.place
        scores = self.query(h) @ self.key(h).transpose(1, 2) / h.shape[2] ** 0.5
        return self.out(h + scores.softmax(2) @ self.value(h)).flatten(1)


def recordings(n, gain):
    pitch = 4 + 12 * torch.rand(n, 1)
    voice = torch.sin(6.2832 * pitch * time) * torch.sin(3.1416 * time) ** 2
    hum = 0.6 * torch.sin(6.2832 * (45 + 10 * torch.rand(n, 1)) * time)
    return gain * (voice + hum), gain * voice


model = Separator()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(240):
    x, y = recordings(16, 1.0 if step < 120 else 100.0)
    with torch.autocast("cpu", torch.float16):
        estimate = model(x)
    loss = F.mse_loss(estimate.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step in (119, 120, 121, 239):
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
