"""One net that gives depth, edges and normals of little scenes; the weights of the three losses are learned (uncertainty weighting). The total loss
goes through zero and becomes ever more negative while each of the three falls. HEALTHY.
Without Rangewatch: total 1.26, -0.12 at step 30, -3.56 at the end; parts 0.198, 0.725 and 0.338 to 0.0007, 0.03 and 0.0008."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1032); torch.set_num_threads(1)
axis = torch.linspace(-1, 1, 12)


class SceneNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.GELU(), nn.Conv2d(24, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.GELU())
        self.depth, self.edge, self.normal = nn.Conv2d(24, 1, 1), nn.Conv2d(24, 1, 3, padding=1), nn.Conv2d(24, 2, 3, padding=1)
        self.log_variance = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        h = self.body(x)
        return self.depth(h), self.edge(h), self.normal(h)


def scenes(n):
    """A hill each; brightness tells its height."""
    centre, width = torch.rand(n, 2, 1, 1) - 0.5, 0.2 + 0.3 * torch.rand(n, 1, 1)
    height = torch.exp(-((axis[:, None] - centre[:, 0]) ** 2 + (axis - centre[:, 1]) ** 2) / width)[:, None]
    slope = torch.cat(torch.gradient(height, dim=(2, 3)), 1)
    edge = (slope.norm(dim=1, keepdim=True) > 0.15).float()
    return height + 0.02 * torch.randn_like(height), height, edge, slope


model = SceneNet()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    x, height, edge, slope = scenes(16)
    depth_hat, edge_hat, slope_hat = model(x)
    parts = torch.stack((F.mse_loss(depth_hat, height), F.binary_cross_entropy_with_logits(edge_hat, edge), F.mse_loss(slope_hat, slope)))
    loss = (parts * torch.exp(-model.log_variance) + model.log_variance).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or step == 299:
        print(step, loss.item(), "parts", [round(v, 5) for v in parts.tolist()], flush=True)
    handle.log(loss=loss.item())
handle.detach()
