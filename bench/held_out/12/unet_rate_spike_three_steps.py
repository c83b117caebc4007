"""A small U-Net that takes noise from seismic sections, AdamW. FAULT at steps 115 to 117: a callback's table of rates has 0.2 in place of 0.002 for three
steps; after them the rate is right again.
Without Rangewatch: loss 0.23 to 0.059 at step 114, 0.22, 0.36 and 0.32 at steps 116 to 118, 0.145 at the end (without the spike 0.078).
Variant of: gpt_with_lr_100_times_for_three_steps.
Cause: learning_rate. Step: 115. Right: rate / schedule. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate"], "step": [114, 119], "place": None, "rank": None,
          "wrong": ["GradScaler", "attention mask"],
          "right": "rate|schedul"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1223); torch.set_num_threads(1)


def double(a, b):
    return nn.Sequential(nn.Conv1d(a, b, 5, padding=2), nn.GroupNorm(4, b), nn.GELU(), nn.Conv1d(b, b, 5, padding=2), nn.GELU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = double(1, 16), double(16, 32), double(48, 16)
        self.out = nn.Conv1d(16, 1, 1)

    def forward(self, x):
        high = self.first(x)
        low = F.interpolate(self.second(F.avg_pool1d(high, 2)), scale_factor=2.0)
        return self.out(self.last(torch.cat([high, low], 1)))


def sections(n):
    spikes = torch.randn(n, 1, 48) * (torch.rand(n, 1, 48) < 0.15)
    wavelet = torch.tensor([-0.3, 0.2, 1.0, 0.2, -0.3]).view(1, 1, 5)
    clean = F.conv1d(spikes, wavelet, padding=2)
    return clean + 0.5 * torch.randn(n, 1, 48), clean


model = UNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(230):
    for group in optimizer.param_groups:
        group["lr"] = 0.2 if 115 <= step <= 117 else 0.002
    noisy, clean = sections(32)
    loss = F.mse_loss(model(noisy), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (114, 115, 116, 117, 118, 119, 229):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
