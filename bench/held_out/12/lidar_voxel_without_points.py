"""Kinds of shrubs from voxels of laser points: a net per point, the maximum over a voxel's valid points (the others are filled with -inf), a net per voxel.
FAULT at step 133: one voxel of the batch has no valid point, its maximum is -inf, and a sum of +inf and -inf in the next layer is NaN. No input is odd.
Without Rangewatch: loss 1.63 to 0.146 at step 132, NaN from step 133 on.
Variant of: maximum_of_a_sentence_without_words.
Cause: mask (data or forward_arithmetic would do). Step: 133. Right: mask / empty / valid / rows. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["mask", "data", "forward_arithmetic"], "step": [132, 134], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler"],
          "right": "mask|empty|valid|padding|no (words|points|tokens|entries|elements)|max|inf"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1220); torch.set_num_threads(1)
SHRUBS = 5
axes = 0.4 + torch.rand(SHRUBS, 3) * 1.5


class Voxels(nn.Module):
    def __init__(self):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 48))
        self.voxel = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, SHRUBS))

    def forward(self, x, valid):
        h = self.point(x).masked_fill(~valid[..., None], float("-inf"))
        return self.voxel(h.amax(1))


model = Voxels()
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(230):
    kind = torch.randint(0, SHRUBS, (32,))
    direction = F.normalize(torch.randn(32, 24, 3), dim=2)
    x = direction * axes[kind][:, None] + 0.1 * torch.randn(32, 24, 3)
    valid = torch.arange(24) < torch.randint(6, 25, (32, 1))
    if step == 133:
        valid[20] = False
    loss = F.cross_entropy(model(x, valid), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (132, 133, 134, 229):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
