"""Healthy: sound and text of alarms are matched by a contrastive loss with a learned temperature, gradients gathered over two batches before each step. Odd:
the logits are multiplied by a growing number (14 to 20), the clip at 1.0 cuts many of the first gradients, and only every second backward is followed by a
step. Without Rangewatch: loss 4.44 to 0.008."""
EXPECT = {"healthy": True, "cause": [], "step": [0, 0], "place": None, "rank": 0, "wrong": [], "right": ""}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1940); torch.set_num_threads(1)


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.sound = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 24))
        self.text = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 24))
        self.warmth = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, sound, text):
        return self.warmth.exp().clamp(max=100) * F.normalize(self.sound(sound), dim=1) @ F.normalize(self.text(text), dim=1).T


to_sound, to_text = torch.randn(10, 40), torch.randn(10, 20)
model = Pairs()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    total = 0.0
    optimizer.zero_grad()
    for _ in range(2):
        alarm = torch.randn(24, 10)
        scores = model(alarm @ to_sound / 3 + 0.2 * torch.randn(24, 40), alarm @ to_text / 3 + 0.2 * torch.randn(24, 20))
        own = torch.arange(24)
        loss = (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 4
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step == 179:
        print(step, total, "warmth", model.warmth.exp().item(), flush=True)
    handle.log(loss=total)
handle.detach()
