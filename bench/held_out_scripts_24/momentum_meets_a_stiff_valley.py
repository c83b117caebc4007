"""A Fourier-feature regression of a sound wave, functional code with weights in a dict wrapped by a ParameterDict, SGD with momentum. FAULT at step 110: the rate goes from 0.02
to a value a little above what the steepest direction bears; the loss does not jump, it grows by a factor at each step and is a thousandfold within 50 steps.
Without Rangewatch: @@
Cause: learning_rate. Step: 110 to 150. Right: learning rate / lower. Wrong: GradScaler, attention mask, bad batch."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [109, 160], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|clip", "wrong": ["GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2412); torch.set_num_threads(1)
bank = 12 * torch.randn(1, 100)


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.ParameterDict({"a": 0.05 * torch.randn(200, 48), "b": torch.zeros(48), "c": 0.1 * torch.randn(48, 2)})

    def forward(self, t):
        f = torch.cat((torch.sin(t @ bank), torch.cos(t @ bank)), 1)
        return (f @ self.w["a"] + self.w["b"]) @ self.w["c"]


def wave(t):
    return torch.cat((torch.sin(9 * t) + 0.5 * torch.sin(21 * t + 1), torch.cos(14 * t)), 1)


model = Wave()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
handle = rangewatch.attach(model, optimizer)
t = torch.linspace(-1, 1, 160)[:, None]
for step in range(200):
    if step == 110:
        optimizer.param_groups[0]["lr"] = 0.115
    loss = ((model(t) - wave(t) - 0.05 * torch.randn(160, 2)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
