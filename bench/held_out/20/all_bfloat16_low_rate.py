"""A mixer over tokens that forecasts the next hours of wind at ten masts, model and AdamW wholly in bfloat16. FAULT from the start: with a rate of 2e-5
almost each update is less than half a unit in the last place of its weight, and is rounded away.
Without Rangewatch: of 20,242 weights 1,346 have moved by step 239, nearly all in the first update; loss 0.48 to 0.51 (0.38 in float32).
Cause: optimizer (updates lost in bfloat16), or learning_rate (too low for it). Step: 0. Right: bfloat16 / round / master / Kahan / float32.
Wrong: GradScaler, lower the learning rate, mask."""
EXPECT = {"cause": ["optimizer", "learning_rate"], "step": [0, 200], "place": None, "rank": 0,
          "wrong": ["GradScaler", "[Ll]ower the learning rate", "attention mask"],
          "right": "(?i)bfloat16|bf16|round|float32|master|kahan|precision"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2008); torch.set_num_threads(1)
mixing = torch.randn(10, 10) / 3


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(10, 48)
        self.over_time = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))
        self.over_channels = nn.ModuleList(nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48)) for _ in range(2))
        self.forecast = nn.Linear(48, 10)

    def forward(self, x):
        h = self.lift(x)
        for time, channels in zip(self.over_time, self.over_channels, strict=True):
            h = h + time(h.transpose(1, 2)).transpose(1, 2)
            h = h + channels(h)
        return self.forecast(h.mean(1))


def winds(n):
    x = torch.randn(n, 1, 10) + 0.3 * torch.randn(n, 12, 10)
    return x, torch.tanh(x.mean(1) @ mixing)


torch.set_default_dtype(torch.bfloat16)
model = Mixer()
torch.set_default_dtype(torch.float32)
before = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, y = winds(48)
    loss = F.mse_loss(model(x.bfloat16()).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or step == 239:
        moved = sum(int((p != q).sum()) for p, q in zip(model.parameters(), before, strict=True))
        print(step, loss.item(), "moved", moved, "of", sum(p.numel() for p in before), flush=True)
    handle.log(loss=loss.item())
handle.detach()
