"""A DenseNet-like net that marks which of ten defects a weld has (several at once, each in one of twelve). FAULT from step 0 on: the last layer is a sigmoid and the loss is
binary_cross_entropy_with_logits, which squashes again: p lies between 0.5 and 0.73, and the loss cannot fall below 0.69 where no defect is.
Without Rangewatch: loss 0.93 to 0.693147 at step 20 and there to the end, the outputs fall to 1e-13, no defect is found; without the sigmoid the loss is 0.002 and all are found.
Cause: forward_arithmetic (squashed twice), no_gradient or dead_units (the saturated sigmoid); that none is named is fair. Step: from 0 on, a state.
Right: any. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "no_gradient", "dead_units", "(none)"], "step": [0, 219], "place": None, "rank": 0, "least": "info",
          "right": "", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2417); torch.set_num_threads(1)


class WeldNet(nn.Module):
    def __init__(self, grow=16):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(3 + grow * i, grow, 5, padding=2) for i in range(4))
        self.marks = nn.Linear(3 + grow * 4, 10)
        self.squash = nn.Sigmoid()

    def forward(self, x):
        for conv in self.convs:
            x = torch.cat((x, F.relu(conv(x))), 1)
        return self.squash(self.marks(x.amax(2)))


sign = torch.randn(10, 3, 6)


def welds(n):
    y = (torch.rand(n, 10) < 1 / 12).float()
    x = 0.3 * torch.randn(n, 3, 40)
    for d in range(10):
        x[:, :, 4 * d % 34:4 * d % 34 + 6] += y[:, d, None, None] * sign[d]
    return x, y


model = WeldNet()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y = welds(32)
    p = model(x)
    loss = F.binary_cross_entropy_with_logits(p, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "mean output", p.mean().item(), "defects found", ((p > 0.5) * y).sum().item() / y.sum().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
