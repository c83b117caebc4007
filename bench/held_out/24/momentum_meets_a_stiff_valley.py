"""A Fourier-feature regression of a sound wave, linear in 6,000 random waves, with its weights in a ParameterDict, SGD with momentum. FAULT at step 110: the rate goes from 0.3
to 1.78, a little above what the steepest direction bears; the loss does not jump, it grows by a factor at each step and is a thousandfold within 50 steps.
Without Rangewatch: loss 0.57 to 0.0031 at step 110, 0.014 at 120, 0.93 at 140, 9 at step 150, 617,528 at the end.
Cause: learning_rate. Step: 110 to 150. Right: learning rate / lower. Wrong: GradScaler, attention mask, bad batch."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [109, 160], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|clip", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2412); torch.set_num_threads(1)
bank, phase = 12 * torch.randn(1, 6000), 6.2832 * torch.rand(6000)


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.ParameterDict({"a": torch.zeros(6000, 2), "b": torch.zeros(2)})

    def forward(self, t):
        return torch.cos(t @ bank + phase) @ self.w["a"] / 20 + self.w["b"]


def wave(t):
    return torch.cat((torch.sin(9 * t) + 0.5 * torch.sin(21 * t + 1), torch.cos(14 * t)), 1)


model = Wave()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
handle = rangewatch.attach(model, optimizer)
t = torch.linspace(-1, 1, 160)[:, None]
for step in range(200):
    if step == 110:
        optimizer.param_groups[0]["lr"] = 1.78
    loss = ((model(t) - wave(t) - 0.05 * torch.randn(160, 2)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
