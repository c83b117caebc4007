"""A net of two towers that matches job offers with letters, in float16 autocast with a GradScaler. FAULT at step 124: for eight batches a debug setting
sums the loss instead of taking its mean and weighs it by 500; the scaled gradient exceeds 65504 in float16 and is inf; the scaler skips these steps and
halves its scale each time. No weight is harmed, but the steps are lost and the scale falls.
Without Rangewatch: loss 3.5 to 0.64 at step 123; the scale falls from 8192 to 32 in steps 124 to 131, all eight skipped; 0.57 at step 132, 0.19 at the end.
Cause: loss_scale (overflow of the gradient in float16) or backward_arithmetic. Step: 124. Right: overflow / skipped / scale / float16. Wrong: mask."""
EXPECT = {"cause": ["loss_scale", "backward_arithmetic", "data", "(none)", ""], "step": [123, 132], "place": None, "rank": 0, "least": "info",
          "wrong": ["(?i)attention mask", "(?i)reload the checkpoint"],
          "right": "(?i)overflow|skip|scale|float16|fp16|half|bfloat16"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1909); torch.set_num_threads(1)


class Towers(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.offer = nn.Sequential(nn.Linear(24, 64), nn.SiLU(), nn.Linear(64, width))
        self.letter = nn.Sequential(nn.Linear(36, 64), nn.SiLU(), nn.Linear(64, width))

    def forward(self, offer, letter):
        return 0.2 * self.offer(offer) @ self.letter(letter).T


to_offer, to_letter = torch.randn(8, 24), torch.randn(8, 36)


def pairs(n):
    job = torch.randn(n, 8)
    return job @ to_offer / 3 + 0.3 * torch.randn(n, 24), job @ to_letter / 3 + 0.3 * torch.randn(n, 36)


model = Towers()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 13, growth_interval=500)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    offer, letter = pairs(32)
    with torch.autocast("cpu", torch.float16):
        scores = model(offer, letter)
    debug = 124 <= step < 132
    loss = F.cross_entropy(scores.float(), torch.arange(32), reduction="sum" if debug else "mean") * (500 if debug else 1)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or 122 < step < 134 or step == 199:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
