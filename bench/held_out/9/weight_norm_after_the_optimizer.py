"""A temporal convolution net that forecasts load, Adam. FAULT from step 0 on: weight normalisation is put on the convolutions after the optimizer was made;
their weights are now computed of two new parameters that no optimizer holds. Biases and the last layer learn, the loss goes down, to four times what
it could be.
Without Rangewatch: loss 1.79 to 0.083, and to 0.020 with the optimizer made afterwards; original0 and original1 move by exactly 0 in 260 steps.
Report: of the same kind as pytorch/pytorch#1945 (weight_norm puts weight_g and weight_v in place of weight), google/flax#5576 (g is not among the
optimizer's parameters).
Cause: optimizer. Step: 0. Right: optimizer / parameters / not updated. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["optimizer"], "step": [0, 150], "place": r".*(convs|parametrizations|weight).*|", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "optimizer|param_groups|not (in|held|change|move|train|updated)|parameters"}
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
import rangewatch

torch.manual_seed(812); torch.set_num_threads(1)


class TCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(1 if i == 0 else 32, 32, 3, dilation=2 ** i) for i in range(4))
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        x = x[:, None]
        for i, conv in enumerate(self.convs):
            y = F.relu(conv(F.pad(x, (2 * 2 ** i, 0))))
            x = y if i == 0 else x + y
        return self.out(x.transpose(1, 2)).squeeze(2)


def load(n):
    t, phase = torch.arange(49.0), torch.rand(n, 1) * 6.28
    day = torch.sin(t * 0.26 + phase)
    return torch.sign(day) * day.abs() ** 0.4 + 0.5 * torch.sin(t * 1.3 + 2 * phase) * (day > 0) + 0.05 * torch.randn(n, 49)


model = TCN()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for i, conv in enumerate(model.convs):
    model.convs[i] = weight_norm(conv)  # after the optimizer: the weights it holds are no longer those of the model
handle = rangewatch.attach(model, optimizer)
before = {name: p.detach().clone() for name, p in model.named_parameters()}
for step in range(260):
    series = load(32)
    loss = F.mse_loss(model(series[:, :-1])[:, 8:], series[:, 9:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 259:
        moved = {name: (p - before[name]).abs().max().item() for name, p in model.named_parameters()}
        print(step, loss.item(), "moved", {k: round(v, 4) for k, v in moved.items() if "convs.1" in k or "out" in k}, flush=True)
    handle.log(loss=loss.item())
handle.detach()
