"""A PointNet (a shared net for each point, then the maximum) names shapes. FAULT at step 130: one cloud of the batch comes from a lidar that was
covered, its points are NaN.
Without Rangewatch: loss 1.39 to 0.016 at step 129, NaN from step 130 on.
Variant of: nan_in_one_row_of_a_batch (here a cloud of points).
Cause: data. Step: 130. Right: input / batch / row / data. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [129, 133], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "input|batch|row|data|sample|loader"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1407); torch.set_num_threads(1)
SHAPES, POINTS = 4, 40


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU())
        self.shape = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, SHAPES))

    def forward(self, cloud):
        return self.shape(self.point(cloud).amax(1))


def clouds(n):
    y = torch.randint(0, SHAPES, (n,))
    p = F.normalize(torch.randn(n, POINTS, 3), dim=2)
    cube = p / p.abs().amax(2, keepdim=True)
    flat = p * torch.tensor([1.0, 1.0, 0.1])
    long = p * torch.tensor([0.4, 0.4, 1.6])
    kinds = torch.stack([p, cube, flat, long], 1)
    return kinds[torch.arange(n), y] + 0.05 * torch.randn(n, POINTS, 3), y


model = PointNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y = clouds(32)
    if step == 130:
        x[5] = float("nan")
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 133:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
