"""SimCLR-like contrastive learning of 12 views' channels; each channel has a gain >= 0 (clamped after each step, a small L1 on them prunes), used as sqrt(gain). The clip divides by the largest gradient first ("a safe norm").
FAULT: when the first gain is clamped to 0, sqrt'(0) makes that one gradient inf; the clip's inf / inf is NaN, its norm is NaN, and the clip multiplies all gradients by NaN.
Without Rangewatch: loss 4.59 to 1.24 at step 119, where the norm is NaN and all weights are NaN behind the step; loss NaN at step 120.
Cause: clip and backward_arithmetic (sqrt at 0). Step: 119. Right: clip / norm / sqrt / eps / inf. Wrong: lower the learning rate, mask."""
EXPECT = {"cause": ["clip", "backward_arithmetic"], "step": [117, 123], "place": None, "rank": None,
          "right": "(?i)clip|norm|sqrt|eps|inf|zero", "wrong": ["attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(108); torch.set_num_threads(1)


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(12))
        self.encoder = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x):
        return F.normalize(self.encoder(x * self.gain.sqrt()), dim=1)


def clip_all(parameters, most=1.0):
    flat = torch.cat([p.grad.flatten() for p in parameters])
    top = flat.abs().max()
    norm = top * (flat / top).norm()
    for p in parameters:
        p.grad.mul_((most / norm).clamp(max=1.0))
    return norm


net = Views()
optimizer = torch.optim.Adam([{"params": net.encoder.parameters(), "lr": 1e-3}, {"params": [net.gain], "lr": 8e-3}])
handle = rangewatch.attach(net, optimizer)
noise = torch.tensor([0.2] * 8 + [3.0] * 4)
for step in range(200):
    x = torch.randn(64, 12) * torch.tensor([1.0] * 8 + [0.0] * 4)
    a, b = net(x + noise * torch.randn(64, 12)), net(x + noise * torch.randn(64, 12))
    loss = F.cross_entropy(a @ b.T / 0.2, torch.arange(64)) + 0.02 * net.gain.sum()
    optimizer.zero_grad()
    loss.backward()
    norm = clip_all(list(net.parameters()))
    optimizer.step()
    with torch.no_grad():
        net.gain.clamp_(min=0)
    if step % 20 == 0 or not norm.isfinite():
        print(step, loss.item(), "norm", norm.item(), "least gain", net.gain.min().item(), flush=True)
    handle.log(loss=loss.item())
    if loss.isnan():
        break
handle.detach()
