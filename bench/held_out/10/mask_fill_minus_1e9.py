"""A decoder of bracket strings with attention written by hand. FAULT at step 100: from here on it runs in float16 autocast (the first 100 steps were a
check in float32), and masked_fill(mask, -1e9) raises, for float16 ends at -65504.
Without Rangewatch: loss 0.73 to 0.46 at step 99; "RuntimeError: value cannot be converted to type c10::Half without overflow" at step 100.
Report: NVIDIA/apex#1052 and #1105 ("value cannot be converted to type at::Half without overflow: -1e+09", an attention mask), InternLM/lmdeploy#3152.
Cause: crash (or mask). Step: 100. Right: raised / RuntimeError / overflow / mask value / -inf / finfo. Wrong: lower the learning rate, data."""
EXPECT = {"cause": ["crash", "mask"], "step": [99, 101], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "corrupt"],
          "right": "RuntimeError|rais|exception|overflow|finfo|mask|without overflow"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1013); torch.set_num_threads(1)
LENGTH = 16
hidden_later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


class BracketDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.sign, self.place = nn.Embedding(3, 32), nn.Parameter(0.1 * torch.randn(LENGTH, 32))
        self.qkv, self.join = nn.Linear(32, 96), nn.Linear(32, 32)
        self.feed = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.out = nn.Linear(32, 2)

    def forward(self, x):
        h = self.sign(x) + self.place
        q, k, v = self.qkv(h).chunk(3, dim=2)
        scores = (q @ k.transpose(1, 2)) / 32 ** 0.5
        scores = scores.masked_fill(hidden_later, -1e9)
        h = h + self.join(scores.softmax(2).to(v.dtype) @ v)
        return self.out(h + self.feed(h))


def brackets(n):
    """Random walks that stay above zero: 0 opens, 1 closes; 2 begins."""
    rows = torch.full((n, LENGTH + 1), 2)
    for row in rows:
        height = 0
        for i in range(1, LENGTH + 1):
            row[i] = 0 if height == 0 else (1 if height == 3 else int(torch.randint(0, 2, (1,))))
            height += 1 - 2 * int(row[i])
    return rows[:, :-1], rows[:, 1:]


model = BracketDecoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(200):
    x, y = brackets(16)
    with torch.autocast("cpu", torch.float16, enabled=step >= 100):
        logits = model(x)
    loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step > 97:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
