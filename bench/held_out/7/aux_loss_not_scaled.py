"""Depth and edges of images in float16 autocast with a GradScaler. There are two backward calls, and only the first loss goes through scaler.scale;
the edge loss is backpropagated as it is, and scaler.step divides its gradients by 16384 with the others. FAULT from step 0 on: the edge head,
trained by SGD, does not learn at all, the depth head does. All stays finite.
Without Rangewatch: depth loss 0.51 to 0.0003, edge loss 3.69 to 3.71; the scale is 16384 throughout.
Report: facebookresearch/fairchem#637 (each loss must be scaled), ashawkey/stable-dreamfusion#158 (other losses are scaled, this one is not),
nerfstudio-project/nerfacc#307.
Cause: loss_scale (or no_gradient). Step: 0. Right: scale the other loss / scaler / underflow. Wrong: lower the learning rate, mask, data order."""
EXPECT = {"cause": ["loss_scale", "no_gradient"], "step": [0, 120], "place": r".*edge.*|", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "shuffl"],
          "right": "scal|GradScaler|underflow|small|gradient|unscale|not (move|change|train|learn)"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(718); torch.set_num_threads(1)
scene = torch.randn(6, 3, 8, 8)
depth_of = nn.Conv2d(3, 1, 3, padding=1)
edge_of = nn.Conv2d(3, 1, 3, padding=1)


class DepthAndEdges(nn.Module):
    def __init__(self):
        super().__init__()
        self.depth = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1))
        self.edge = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1))

    def forward(self, x):
        return self.depth(x), self.edge(x)


model = DepthAndEdges()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(260):
    x = scene[torch.randint(0, 6, (16,))] + 0.5 * torch.randn(16, 3, 8, 8)
    with torch.no_grad():
        depth, edges = depth_of(x), 3 * edge_of(x)
    with torch.autocast("cpu", dtype=torch.float16):
        d, e = model(x)
    loss = F.mse_loss(d.float(), depth)
    edge_loss = F.mse_loss(e.float(), edges)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    edge_loss.backward()  # forgotten: scaler.scale
    scaler.step(optimizer)
    scaler.update()
    handle.log(loss=loss.item(), edge_loss=edge_loss.item())
    if step % 20 == 0:
        print(step, loss.item(), edge_loss.item(), scaler.get_scale(), flush=True)
handle.detach()
