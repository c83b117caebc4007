"""Two towers (questions, answers) are trained by contrast in float16 autocast; the scale of their product follows a schedule. FAULT: nothing bounds
it, from step 60 on it grows by 6 % a step; scale times product passes 65504 at step 199, is inf in float16, and softmax NaN.
Without Rangewatch: loss 2.65 to 0.38 at step 50, 0.006 at 90, 32 at 160, 206 at 180; the largest score 14.6 at step 60 to 32,688 at 180,
inf and NaN at step 199.
Variant of: fp16_attention_scores_grow (here the scores of two towers).
Cause: forward_arithmetic (overflow of float16). Step: 199, the growth is visible from about 60 on. Right: float16 / 65504 / overflow / clamp / bfloat16.
Wrong: attention mask, data."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [50, 201], "place": None, "rank": 0,
          "wrong": ["attention mask", "corrupt"],
          "right": "float16|fp16|65504|overflow|clamp|bfloat16|bf16|scale|range"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1413); torch.set_num_threads(1)
mixed = torch.randn(12, 12)


class Score(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(1.0))

    def forward(self, q, a):
        return (self.scale.to(q.dtype) * q) @ a.T


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.question = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 32))
        self.answer = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 32))
        self.score = Score()

    def forward(self, q, a):
        return self.score(self.question(q), self.answer(a))


model = Towers()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    if step >= 60:
        model.score.scale *= 1.06
    q = torch.randn(16, 12)
    a = q @ mixed / 3
    with torch.autocast("cpu", torch.float16):
        scores = model(q, a)
    loss = F.cross_entropy(scores.float(), torch.arange(16))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or not loss.isfinite():
        print(step, loss.item(), "largest score", scores.abs().max().item(), "scale", model.score.scale.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
