"""Kinds of clouds: to step 99 only the head learns, the body is frozen and in eval; from step 100 on the body is trained too, by a group that is added to the
optimizer, and is in train. HEALTHY: it was planned so.
Seen: loss 1.61 to 1.11 at step 99, 1.14 at step 100, 0.37 at step 120, 0.092 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1535); torch.set_num_threads(1)
CLOUDS = 5


class CloudNet(nn.Module):
    """Kinds of clouds; first the head alone on a frozen body, which is in eval, then all at a lower rate."""
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(32, CLOUDS))

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


grid = torch.stack(torch.meshgrid(torch.arange(16) / 16, torch.arange(16) / 16, indexing="ij"))
wave = torch.randn(CLOUDS, 2) * 10


def skies(n):
    y = torch.randint(0, CLOUDS, (n,))
    phase = torch.einsum("nk,kij->nij", wave[y], grid) + 6.2832 * torch.rand(n, 1, 1)
    return (torch.sin(phase) + 0.3 * torch.randn(n, 16, 16))[:, None], y


model = CloudNet()
model.body.requires_grad_(False).eval()
optimizer = torch.optim.Adam(model.head.parameters(), lr=2e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 100:
        model.body.requires_grad_(True).train()
        optimizer.param_groups[0]["lr"] = 3e-3
        optimizer.add_param_group({"params": model.body.parameters(), "lr": 1e-3})
    x, y = skies(48)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (99, 101, 219):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
