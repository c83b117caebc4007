"""A weather emulator on a grid: it predicts the tendency of specific humidity in kg/kg per ten minutes. FAULT from step 0: the target is in SI units,
some 1e-5, and so is the output layer's scale: the loss is 4e-11, gradients are 3e-11 and less, far below Adam's eps of 1e-8, which then decides
every update: they are a hundredth of the rate and less. Without Rangewatch: loss 4.35e-11 to 4.29e-11 (1.08 to 1.05 of the variance of the target);
the largest gradient is 3e-11 and the largest change of a weight in 240 steps 0.0015, where the rate would allow 0.48.
Report: NVIDIA-NeMo/Emerging-Optimizers#189 (where the denominator's natural scale approaches eps the guard reshapes the algorithm),
okoge-kaz/llm-recipes#8, mlpnlp/mlpnlp-nmt#4.
Cause: optimizer (eps), or the data's units. Right: eps / scale the target / normalise / underflow. Wrong: lower the learning rate, mask, leave out
samples."""
EXPECT = {"cause": ["optimizer", "data"], "step": [0, 120], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "leave out samples"],
          "right": "eps|[Ss]cale|[Nn]ormali|unit"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(522); torch.set_num_threads(1)


class Emulator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 24, 3, padding=1, padding_mode="circular"), nn.GELU(),
            nn.Conv2d(24, 24, 3, padding=1, padding_mode="circular"), nn.GELU())
        self.head = nn.Conv2d(24, 1, 1)

    def forward(self, x):
        return self.head(self.body(x)) * 1e-5  # tendencies are of this size


model, kernel = Emulator(), torch.randn(1, 4, 3, 3) / 6
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
first = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
for step in range(240):
    x = torch.randn(8, 4, 16, 16)
    target = 1e-5 * torch.tanh(F.conv2d(F.pad(x, (1, 1, 1, 1), "circular"), kernel))
    loss = F.mse_loss(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        now = nn.utils.parameters_to_vector(model.parameters()).detach()
        print(step, loss.item(), "of the variance", loss.item() / target.var().item(), max(p.grad.abs().max().item() for p in model.parameters()),
              "moved", (now - first).abs().max().item(), flush=True)
handle.detach()
