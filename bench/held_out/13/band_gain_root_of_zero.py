"""An equalizer learns which of 16 bands of a sound matter: features are multiplied by sqrt(gain), and gains are clamped to >= 0 after each step. FAULT where a
useless band's gain first arrives at exactly 0 (step 71): the derivative of its root is inf, clip_grad_norm_ multiplies by 1 / inf, and inf * 0 is NaN.
Without Rangewatch: loss 0.87 to 0.19 at step 71, the least gain 0.078 at step 60 and 0 at 71, where its gradient is inf; NaN from step 72 on.
Variant of: clip_spreads_one_inf_gradient.
Cause: backward_arithmetic (the root at 0) or clip (which makes NaN of inf). Step: 71. Place: gain. Right: sqrt / eps / clamp / error_if_nonfinite.
Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["backward_arithmetic", "clip", "weight"], "step": [60, 72], "place": ".*gain.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "sqrt|eps|clamp|zero|clip|nonfinite|root|deriv"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1317); torch.set_num_threads(1)
BANDS = 16
of_use = torch.arange(BANDS) < 9
direction = torch.randn(BANDS, 3) * of_use[:, None]


class Equalizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.full((BANDS,), 0.5))
        self.net = nn.Sequential(nn.Linear(BANDS, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x):
        return self.net(x * torch.sqrt(self.gain))


def sounds(n):
    x = torch.randn(n, BANDS)
    return x, torch.tanh(x @ direction)


model = Equalizer()
optimizer = torch.optim.SGD([{"params": [model.gain], "lr": 0.05}, {"params": model.net.parameters(), "lr": 0.1}], momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, y = sounds(64)
    loss = F.mse_loss(model(x), y) + 0.01 * model.gain.sum()
    optimizer.zero_grad()
    loss.backward()
    inf = model.gain.grad.isinf().sum().item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        model.gain.clamp_(min=0.0)
    if step % 20 == 0 or inf:
        print(step, loss.item(), "least gain", model.gain.min().item(), "inf", inf, flush=True)
    handle.log(loss=loss.item())
handle.detach()
