"""Torques of a three-joint arm from angles, speeds and accelerations (MLP, float16 autocast, Adam with GradScaler).
FAULT at step 0: the loss scale is set by code, `scaler.update(2.0 ** (16 - 0.3 * step))`, "smaller scale for smaller gradients at the end"; from some 100 steps on the float16 gradients underflow to 0, layer by layer, and the training stands still.
Without Rangewatch: scale 16 at step 40, 4e-3 at 80, 1e-6 at 120; gradient entries of exactly 0: 5 % at 100, all from some 120; loss 3.9 to 1.6 and there for ever (with the scale left alone: 0.8 at 259).
Cause: loss_scale (driven to nothing). Step: scale below 1 at 54; gradients die from some 95 to 120. Right: leave the scale to GradScaler, a larger scale, bfloat16. Wrong: a smaller loss scale, lower the learning rate, clip."""
EXPECT = {"cause": ["loss_scale"], "step": [5, 170], "place": None, "rank": None,
          "right": r"(?i)scale|underflow|bf16|bfloat16", "wrong": [r"(?i)(smaller|lower|reduce the) (init|loss.?scale|scale)", r"(?i)lower the learning rate", r"(?i)clip (the )?grad"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1010)
torch.set_num_threads(1)


def movements(n):
    q, qd, qdd = (torch.randn(3, n, 3) * torch.tensor([1.5, 1.0, 1.0])[:, None, None]).unbind(0)
    inertia = 1.0 + 0.5 * torch.cos(q.roll(1, 1))
    torque = inertia * qdd + 0.7 * torch.sin(q) * qd.roll(1, 1) + 2.0 * torch.sin(q.cumsum(1)) + 0.2 * qd
    return torch.cat([q, qd, qdd], 1), torque


class InverseDynamics(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(9, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh())
        self.joints = nn.ModuleList(nn.Linear(96, 1) for _ in range(3))

    def forward(self, state):
        h = self.trunk(state)
        return torch.cat([j(h) for j in self.joints], 1)


arm = InverseDynamics()
adam = torch.optim.Adam(arm.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
handle = rangewatch.attach(arm, adam)
for step in range(260):
    state, torque = movements(128)
    adam.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        guess = arm(state)
    loss = nn.functional.mse_loss(guess.float(), torque)
    scaler.scale(loss).backward()
    scaler.step(adam)
    scaler.update(2.0 ** (16 - 0.3 * step))
    handle.log(loss=loss.item())
    if step % 20 == 0 or step == 259:
        zeros = sum((p.grad == 0).sum().item() for p in arm.parameters()) / sum(p.numel() for p in arm.parameters())
        print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.3g} gradient entries of exactly 0: {zeros:.2f}", flush=True)
handle.detach()
