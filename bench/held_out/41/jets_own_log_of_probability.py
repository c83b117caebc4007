"""Top quark or not: jets as sets of particles (DeepSets, sum pooling), Adam, hand-written binary cross-entropy on sigmoid(out).
FAULT at step 28: the hand-written loss takes log(p) and log(1 - p); when the sigmoid rounds to exactly 1 (or 0), log(0) = -inf and 0 * -inf = NaN.
Without Rangewatch: loss 1.00, 0.36 at step 25, NaN at 28 (1 - p is exactly 0 for a jet) and ever after.
Cause: forward_arithmetic (log of zero in the loss). Step: 28. Right: BCEWithLogitsLoss, clamp p. Wrong: GradScaler, attention mask, all_reduce."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [27, 31], "place": None, "rank": None,
          "right": r"(?i)log|BCEWithLogits|with_logits|clamp|sigmoid|saturat|loss", "wrong": ["GradScaler", r"(?i)attention mask", r"(?i)all_reduce"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(173)
torch.set_num_threads(1)


def jets(n, particles=30):
    top = torch.randint(0, 2, (n,)).float()
    axes = 0.55 * torch.randn(n, 3, 2) * (0.35 + 0.65 * top)[:, None, None]
    which = torch.randint(0, 3, (n, particles))
    angle = axes.gather(1, which[:, :, None].expand(-1, -1, 2)) + 0.12 * torch.randn(n, particles, 2)
    pt = torch.distributions.Exponential(1.0).sample((n, particles))
    hard = torch.rand(n) < 0.1
    pt = pt * (1 + 2 * hard.float())[:, None]
    return torch.cat([angle, pt[:, :, None], (pt + 1e-2).log()[:, :, None]], 2), top


class DeepSets(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.rho = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, jet):
        return torch.sigmoid(self.rho(self.phi(jet).sum(1))).squeeze(1)


def cross_entropy(p, y):
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()


model = DeepSets()
optim = torch.optim.Adam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optim)
bad = False
for step in range(300):
    x, y = jets(64)
    p = model(x)
    loss = cross_entropy(p, y)
    optim.zero_grad()
    loss.backward()
    optim.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or (not bad and not torch.isfinite(loss)):
        print(f"step {step}: loss {loss.item():.4f}, p from {p.min().item():.2e} to 1 - {(1 - p.max()).item():.2e}", flush=True)
        bad = bad or not bool(torch.isfinite(loss))
handle.detach()
