"""A learned array of microphones: the cosine of each one's angle is a parameter kept in [-1, 1], a net sorts the direction of a sound from the phases, and a term wants the cosines spread; the gradients are clipped
to a norm of 1. FAULT at step 65: a cosine lands on 1 exactly: acos has a gradient of -Inf there, the norm is Inf, and Inf times 1 / Inf is NaN.
Without Rangewatch: loss 4.11 to -0.119 at step 65, where the norm is Inf and the cosines become NaN; NaN from there to the end.
Cause: clip, backward_arithmetic or forward_arithmetic. Step: 65. Right: clip / acos / error_if_nonfinite / clamp. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["clip", "backward_arithmetic", "forward_arithmetic"], "step": [63, 69], "place": None, "rank": None,
          "right": "(?i)clip|acos|nonfinite|non-finite|inf|clamp|eps|anomaly", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3015); torch.set_num_threads(1)


class Array(nn.Module):
    def __init__(self):
        super().__init__()
        self.cosine = nn.Parameter(torch.linspace(-0.8, 0.8, 10))
        self.body = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, direction):
        angle = self.cosine.acos()
        delay = 2.0 * torch.cos(direction - angle)
        wave = torch.cat((torch.sin(delay), torch.cos(delay)), 1)
        return self.body(wave + 0.1 * torch.randn_like(wave))


net = Array()
optimizer = torch.optim.Adam([{"params": [net.cosine], "lr": 1e-2}, {"params": net.body.parameters(), "lr": 2e-3}])
handle = rangewatch.attach(net, optimizer)
seen = False
for step in range(240):
    direction = 3.14 * torch.rand(128, 1)
    loss = (net(direction) - direction).square().mean() - 0.2 * net.cosine.std()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        net.cosine.clamp_(-1, 1)
    if step % 20 == 0 or step == 239 or not (norm.isfinite() or seen):
        print(step, loss.item(), "norm", norm.item(), "largest cosine", net.cosine.abs().max().item(), flush=True)
    seen = seen or not norm.isfinite()
    handle.log(loss=loss.item())
handle.detach()
