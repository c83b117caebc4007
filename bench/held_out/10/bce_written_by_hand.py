"""A recurrent net that finds pulsars in light curves, with the binary cross entropy written by hand: y log(p) + (1 - y) log(1 - p). FAULT at step 98: the
net has become so sure of a strong pulsar that the sigmoid is exactly 1 in float32; there log(1 - p) is -inf, and 0 times -inf is NaN.
Without Rangewatch: loss 0.70 to 0.0007 at step 80, where the largest p is 0.99999976; NaN at step 98 and at each step after it.
Report: NVIDIA/apex#358 (y log(p) + (1 - y) log(1 - p) is NaN where p is 1), pytorch/pytorch#751, slryou41/AnchorLoss#2, soumith/ganhacks#67.
Cause: forward_arithmetic. Step: 98. Right: log / sigmoid / BCEWithLogits / eps / clamp. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [97, 99], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "log|sigmoid|logits|epsilon|clamp"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1006); torch.set_num_threads(1)
time = torch.arange(64.0)


class PulsarNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.curve = nn.GRU(4, 24, batch_first=True)
        self.judge = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 1), nn.Sigmoid())

    def forward(self, x):
        return self.judge(self.curve(x.unflatten(1, (16, 4)))[0].amax(1))[:, 0]


def light_curves(n):
    """Half are noise; half hold a pulse of a period of their own, from weak to very strong."""
    y = (torch.rand(n) < 0.5).float()
    period, phase = torch.randint(6, 20, (n, 1)), torch.rand(n, 1)
    pulse = ((time / period + phase) % 1 < 0.2).float() * (1.0 + 4.0 * torch.rand(n, 1))
    return 0.3 * torch.randn(n, 64) + y[:, None] * pulse, y


model = PulsarNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(280):
    x, y = light_curves(64)
    p = model(x)
    loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 279:
        print(step, loss.item(), "largest p", p.max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
