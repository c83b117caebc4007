"""A net over sets of particles that gives the energy of a box of gas, with a penalty: the norm of the force, the gradient of the energy by the places, is held near
1, and the norm is (g ** 2).sum().sqrt() by hand. FAULT at step 125: a box without a single particle comes; its force is 0 and the slope of the root there is inf.
Without Rangewatch: loss 0.99 to 0.28 at step 124, 0.34 at step 125 (the smallest norm is 0.0), NaN from step 126 on.
Cause: backward_arithmetic (or the empty box in the data). Step: 125. Right: sqrt / norm / zero / gradient / epsilon / backward. Wrong: lower the learning rate,
GradScaler, attention mask."""
EXPECT = {"cause": ["backward_arithmetic", "data"], "step": [124, 126], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "sqrt|norm|zero|gradient|epsilon|backward|root"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1615); torch.set_num_threads(1)


class Box(nn.Module):
    def __init__(self):
        super().__init__()
        self.particle = nn.Sequential(nn.Linear(2, 48), nn.Softplus(), nn.Linear(48, 24), nn.Softplus())
        self.energy = nn.Sequential(nn.Linear(24, 24), nn.Softplus(), nn.Linear(24, 1))

    def forward(self, place, there):
        h = (self.particle(place) * there[:, :, None]).sum(1) / 8
        return self.energy(h)[:, 0]


def boxes(n):
    place, there = torch.randn(n, 8, 2), (torch.arange(8) < torch.randint(1, 9, (n, 1))).float()
    return place, there, ((place ** 2).sum(2) * there).mean(1)


model = Box()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    place, there, energy = boxes(64)
    if step == 125:
        there[40], energy[40] = 0.0, 0.0
    place.requires_grad_(True)
    estimate = model(place, there)
    force, = torch.autograd.grad(estimate.sum(), place, create_graph=True)
    norm = (force ** 2).sum((1, 2)).sqrt()
    loss = F.mse_loss(estimate, energy) + 0.02 * ((norm - 1) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 122 < step < 129 or step == 199:
        print(step, loss.item(), "smallest norm", norm.min().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
