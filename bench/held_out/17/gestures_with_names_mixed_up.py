"""A net of convolutions over an armband's eight channels that names a gesture of six. FAULT at steps 100 to 109: one file of recordings was sorted by
time and its labels by name; for ten batches the labels belong to other rows. From step 110 on all is right again.
Without Rangewatch: loss 2.1 to 0.0004 at step 99, 9.9 at step 100, 8.5, 2.0 at step 105, 2.7 at step 110 (the first right batch again), 1.4 at step
120, 0.10 at step 140, 0.0025 at the end.
Cause: data. Step: 100 (to 110). Right: label / batch / data / shuffle. Wrong: GradScaler, mask, overflow of float16."""
EXPECT = {"cause": ["data"], "step": [99, 110], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "float16"],
          "right": "label|target|batch|data|shuffl"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1603); torch.set_num_threads(1)
time = torch.arange(32) / 32
strength, tempo = torch.rand(6, 8, 1), 1 + 5 * torch.rand(6, 8, 1)


def recordings(n):
    gesture = torch.randint(0, 6, (n,))
    wave = strength[gesture] * torch.sin(6.2832 * (tempo[gesture] * time + torch.rand(n, 1, 1)))
    return wave + 0.15 * torch.randn(n, 8, 32), gesture


class Armband(nn.Module):
    def __init__(self):
        super().__init__()
        self.muscles = nn.Sequential(nn.Conv1d(8, 24, 5, padding=2), nn.BatchNorm1d(24), nn.ReLU(), nn.Conv1d(24, 24, 5, stride=2),
                                     nn.BatchNorm1d(24), nn.ReLU())
        self.gesture = nn.Linear(24, 6)

    def forward(self, x):
        return self.gesture(self.muscles(x).amax(2))


model = Armband()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, gesture = recordings(48)
    if 100 <= step < 110:
        gesture = gesture[gesture.argsort()]  # sorted by name, the rows are not
    loss = F.cross_entropy(model(x), gesture)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (99, 101, 105, 109, 110, 111, 115, 199):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
