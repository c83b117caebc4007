"""A model of motion in latent space: a state is encoded, moved on by a residual linear-and-ReLU cell some steps, and decoded; bfloat16 autocast. FAULT at step 120:
the horizon of the rollout goes from 6 to 180 steps. Nothing holds the latent state (no norm, no tanh): it grows by a factor in each of
the steps, to 1e18 and more.
Without Rangewatch: loss 0.0019 at step 119 with outputs up to 1.5; from step 120 to the end outputs up to 5e18 and a loss of 2e36, inf in some steps.
Causes: forward_arithmetic (activations explode), weight. Right: normalise the state / fewer steps / clamp. Wrong: GradScaler (bf16 has the range of float32), mask."""
EXPECT = {"cause": ["forward_arithmetic", "weight"], "step": [119, 122], "place": None, "rank": 0,
          "right": "(?i)activation|norm|overflow|range|clamp|explod|input|scale", "wrong": ["attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2219); torch.set_num_threads(1)


class Roll(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 48), nn.Linear(48, 4)
        self.cell = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48))

    def forward(self, x, horizon):
        h = self.encode(x)
        for _ in range(horizon):
            h = h + self.cell(h)
        return self.decode(h)


model = Roll()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(165):
    horizon = 6 if step < 120 else 180
    size, phase, ratio = 0.5 + torch.rand(32, 1), 6.2832 * torch.rand(32, 1), 0.6 + 0.4 * torch.rand(32, 1)
    now, later = phase, phase + 0.15 * horizon
    x = size * torch.cat((now.cos(), now.sin(), ratio * now.cos(), ratio), 1)
    y = size * torch.cat((later.cos(), later.sin(), ratio * later.cos(), ratio), 1)
    with torch.autocast("cpu", torch.bfloat16):
        z = model(x, horizon)
    loss = (z.float() - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 118 < step < 124 or step == 164:
        print(step, loss.item(), "largest output", z.abs().max().item(), flush=True)
handle.detach()
