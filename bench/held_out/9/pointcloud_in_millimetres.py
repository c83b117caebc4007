"""A PointNet that finds the box of a cloud of points, Adam. FAULT from step 150 on: the second scanner's files are in millimetres, the boxes still in
metres; inputs are a thousand times as large. All stays finite.
Without Rangewatch: loss 0.26 to 0.0037 at step 149, 210232 at step 150, 101 at step 180, 5.2 at the end; largest input 1.3, then 1351.
Report: ethnhe/PVN3D#53 (big loss: depth in cm), Lewis-Stuart-11/PlantDreamer#3 (units of the cloud).
Cause: data. Step: 150. Right: input / scale / normalise / data. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["data"], "step": [150, 152], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "input|data|batch|scal|normali|unit|range|sensor"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(804); torch.set_num_threads(1)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 96))
        self.pose = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 6))

    def forward(self, cloud):
        return self.pose(self.points(cloud).amax(1))


def scans(n, per_metre):
    centre, size = torch.rand(n, 3) * 2 - 1, 0.2 + 0.6 * torch.rand(n, 3)
    cloud = centre[:, None] + (torch.rand(n, 96, 3) - 0.5) * size[:, None]
    return (cloud + 0.005 * torch.randn_like(cloud)) * per_metre, torch.cat([centre, size], 1)


model = PointNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    cloud, box = scans(32, per_metre=1.0 if step < 150 else 1000.0)  # the second scanner writes millimetres
    loss = F.mse_loss(model(cloud), box)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (149, 150, 151) or step == 259:
        print(step, loss.item(), "largest input", cloud.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
