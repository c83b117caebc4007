"""A GhostNet-like classifier with squeeze-and-excitation gates that are clamp(fc(pooled), 0, 1). FAULT from step 0 on: the bias of the gates is set
to -3 (a good start for a sigmoid gate), so that each gate is exactly 0 for every picture: nothing passes, no gradient comes back, and the loss
stays at log 6.
Without Rangewatch: loss 1.795 at step 0 and 1.79 at the end; the gradient of the first layer is exactly 0 at every step.
Report: iamhankai/ghostnet.pytorch#2 (a clamp in place of the sigmoid of the gate), rogertrullo/Receptive-Field-in-Pytorch#3.
Cause: dead_units. Step: 0, or later when it is sure. Right: dead / saturated / gate / clamp / zero. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["dead_units"], "step": [0, 120], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "dead|saturat|gate|clamp|zero|activation|initiali|bias|no gradient"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(821); torch.set_num_threads(1)
CLASSES = 6
patterns = torch.randn(CLASSES, 3, 10, 10)


class HardGate(nn.Module):
    def forward(self, x):
        return x.clamp(0, 1)


class Excite(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.reduce, self.expand, self.gate = nn.Linear(width, width // 4), nn.Linear(width // 4, width), HardGate()
        nn.init.constant_(self.expand.bias, -3.0)

    def forward(self, x):
        return x * self.gate(self.expand(F.relu(self.reduce(x.mean((2, 3))))))[:, :, None, None]


model = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.SiLU(), Excite(24), nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.SiLU(), Excite(32),
                      nn.Flatten(), nn.Linear(32 * 25, CLASSES))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    y = torch.randint(0, CLASSES, (32,))
    x = patterns[y] + torch.randn(32, 3, 10, 10)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0:
        print(step, loss.item(), "gradient of the first layer", model[0].weight.grad.abs().max().item(), flush=True)
handle.detach()
