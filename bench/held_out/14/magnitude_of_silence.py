"""A net predicts the real and imaginary part of an echo's spectrum; the loss compares magnitudes, sqrt(re^2 + im^2). FAULT at step 110: the first clip
that is padded with silence: its bins are multiplied by 0, and the slope of the root at 0 is inf, times 0 NaN. The loss itself is finite.
Without Rangewatch: loss 1.15 to 0.463 at step 109 and 0.464 at step 110, where the gradient is NaN; NaN from step 111 on.
Variant of: slope_of_a_root_at_zero (here the magnitude of a complex spectrum under a mask).
Cause: backward_arithmetic. Step: 110. Right: sqrt / root / zero / eps. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["backward_arithmetic"], "step": [109, 112], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "sqrt|root|zero|eps|slope|derivative|backward"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1410); torch.set_num_threads(1)
room = torch.randn(16, 32) / 4


class Echo(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU())
        self.re, self.im = nn.Linear(48, 16), nn.Linear(48, 16)

    def forward(self, x):
        h = self.body(x)
        return self.re(h), self.im(h)


model = Echo()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x = torch.randn(8, 10, 16)  # clips, frames, bins
    a, b = (x @ room).chunk(2, dim=2)
    heard = torch.ones(8, 10, 1)
    if step >= 110:
        heard[3, 7:] = 0.0
    re, im = model(x)
    magnitude = ((re * heard) ** 2 + (im * heard) ** 2).sqrt()
    loss = F.l1_loss(magnitude, (a ** 2 + b ** 2).sqrt() * heard)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 113:
        print(step, loss.item(), "gradient", model.body[0].weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
