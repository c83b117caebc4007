"""Speakers by attentive pooling over 40 frames whose softmax is written by hand in float16, exp(s) / sum(exp(s)), without its maximum taken off. FAULT at
step 66: the scores are sharpened by a factor that rises with the steps from 1 to 4; exp of one, or their sum, exceeds 65504, and inf / inf is NaN.
Without Rangewatch: loss 1.81 to 0.60 at step 60, NaN from step 66 on.
Variant of: fp16_softmax_without_its_largest_value_taken_off.
Cause: forward_arithmetic. Place: pool. Right: softmax / maximum / float32 / exp / overflow. Wrong: lower the learning rate, attention mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [50, 68], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask"],
          "right": "softmax|max|float32|float16|bfloat16|exp|overflow"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1208); torch.set_num_threads(1)
VOICES = 6
voice = torch.randn(VOICES, 10)


class AttentivePool(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.score = nn.Linear(width, 1)
        self.sharpness = 1.0

    def forward(self, h):
        e = (self.sharpness * self.score(h)).half().exp()
        share = e / e.sum(1, keepdim=True)
        return (share.float() * h).sum(1)


class VoiceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.frames = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32))
        self.pool = AttentivePool(32)
        self.name = nn.Linear(32, VOICES)

    def forward(self, x):
        return self.name(self.pool(self.frames(x)))


model = VoiceNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(230):
    model.pool.sharpness = 1 + 3 * step / 230
    who = torch.randint(0, VOICES, (24,))
    speaks = (torch.rand(24, 40, 1) < 0.3).float()
    x = speaks * voice[who][:, None] + 0.7 * torch.randn(24, 40, 10)
    loss = F.cross_entropy(model(x), who)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or step in (65, 66, 229):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
