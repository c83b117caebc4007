"""Behaviour cloning of a controller that swings up a cart pole (states of simulated drives to forces, MLP), SGD with momentum at a rate that is right for the mean over a batch.
FAULT at step 120: from here on a batch comes in eight parts ("to get smoother gradients") and `loss.backward()` is called for each without dividing by 8: the gradients are added up and eight times too large.
Without Rangewatch: loss 3.6 to 1.8 at 119; gradient 1.2 at 119, 11.7 at 120, 126 at 124; loss 8.4 at 125, NaN at 160 (divided by 8: 1.0 at 200).
Cause: learning_rate (eight times too large in effect) / forward_arithmetic (scale of the loss) / backward_arithmetic (gradients multiplied). Step: 120. Right: divide each part's loss by 8. Wrong: GradScaler, attention mask, a larger learning rate."""
EXPECT = {"cause": ["learning_rate", "forward_arithmetic", "backward_arithmetic"], "step": [119, 140], "place": None, "rank": None,
          "right": r"(?i)accumul|divid|mean|averag|sum|learning rate|micro.?batch|gradient", "wrong": ["GradScaler", r"(?i)attention mask", r"(?i)raise the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(8)
torch.set_num_threads(1)


def expert(s):
    x, v, angle, spin = s.unbind(1)
    energy = 0.5 * spin ** 2 + 3 * (torch.cos(angle) - 1)
    swing = -2.0 * energy * torch.sign(spin * torch.cos(angle) + 1e-3)
    hold = 4 * angle + 1.5 * spin + 0.5 * x + 0.8 * v
    near = torch.sigmoid(8 * (0.5 - angle.abs()))
    return (near * hold + (1 - near) * torch.tanh(swing) * 2)[:, None]


def drive(n):
    s = torch.randn(n, 4) * torch.tensor([1.0, 1.0, 1.2, 1.5])
    return s, expert(s)


policy = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.SGD(policy.parameters(), lr=0.06, momentum=0.9)
handle = rangewatch.attach(policy, opt)
for step in range(240):
    parts = 1 if step < 120 else 8
    opt.zero_grad()
    shown = 0.0
    for _ in range(parts):
        s, force = drive(96)
        loss = (policy(s) - force).square().mean()
        loss.backward()
        shown += loss.item() / parts
    opt.step()
    handle.log(loss=shown)
    if step % 20 == 0 or 118 < step < 127:
        norm = torch.stack([p.grad.norm() for p in policy.parameters()]).norm().item()
        print(f"step {step} loss {shown:.4f} gradient {norm:.3f}", flush=True)
handle.detach()
