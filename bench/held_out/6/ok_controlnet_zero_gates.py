"""A control branch beside a frozen denoiser, with a convolution of zeros as its gate and a gain of zero: at step 0 the branch has gradients of exactly 0,
at step 1 it has some. HEALTHY. Without Rangewatch: loss 0.135 to 0.103; gradient of the branch 0.0, 0.0008, 0.0018; gate 0.002 to 0.133."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(633); torch.set_num_threads(1)


def zero(layer):
    nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    return layer


class Controlled(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.inside, self.hint = nn.Conv1d(1, 24, 3, padding=1), nn.Conv1d(24, 24, 3, padding=1)
        self.gate = zero(nn.Conv1d(24, 24, 1))
        self.gain = nn.Parameter(torch.zeros(1))

    def forward(self, x, hint):
        h = F.silu(self.base[0](x))
        c = F.silu(self.hint(F.silu(self.inside(hint))))
        return self.base[1](h + self.gate(c)) + self.gain * hint


def batch(n=32):
    hint = F.interpolate(torch.randn(n, 1, 4), size=20, mode="linear")
    return hint, torch.randn(n, 1, 20)


base = nn.ModuleList([nn.Conv1d(1, 24, 5, padding=2), nn.Conv1d(24, 1, 5, padding=2)])
pre = torch.optim.Adam(base.parameters(), lr=3e-3)
for _ in range(80):
    clean, noise = batch()
    loss = F.mse_loss(base[1](F.silu(base[0](0.6 * clean + 0.8 * noise))), noise)
    pre.zero_grad()
    loss.backward()
    pre.step()
model = Controlled(base)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    clean, noise = batch()
    loss = F.mse_loss(model(0.6 * clean + 0.8 * noise, clean), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (1, 2, 239):
        print(step, loss.item(), model.inside.weight.grad.abs().max().item(), model.gate.weight.abs().max().item(), model.gain.item(), flush=True)
handle.detach()
