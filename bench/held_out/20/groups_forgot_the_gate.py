"""Six soft experts that forecast the power of a wind farm by the direction of the wind. FAULT from the start: the groups of the optimizer are made by name,
for "experts" and for "head"; nobody thought of the router, which stays as it was drawn.
Without Rangewatch: loss 4.8 to 2.6, the router stands while it has a gradient; with the router in the first group it is 0.56 at the end.
Cause: optimizer (the router is in no group), or no_gradient. Step: 0. Place: router. Right: optimizer / param group. Wrong: lower the rate, GradScaler."""
EXPECT = {"cause": ["optimizer", "no_gradient"], "step": [0, 160], "place": r".*router.*", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "(?i)optimi[sz]er|param.?group|add_param"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2014); torch.set_num_threads(1)
per_sector = torch.randn(6, 5)


class Farm(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Sequential(nn.Linear(7, 32), nn.Tanh(), nn.Linear(32, 6))
        self.experts = nn.ModuleList(nn.Linear(7, 16) for _ in range(6))
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        share = self.router(x).softmax(1)
        each = torch.stack([expert(x) for expert in self.experts], 1)
        return self.head((share[:, :, None] * each).sum(1))[:, 0]


def weather(n):
    angle, rest = 6.2832 * torch.rand(n), torch.randn(n, 5)
    sector = (angle / 6.2832 * 6).long().clamp(max=5)
    return torch.cat((3 * torch.stack((angle.sin(), angle.cos()), 1), rest), 1), (per_sector[sector] * rest).sum(1)


model = Farm()
optimizer = torch.optim.Adam([
    {"params": [p for n, p in model.named_parameters() if "experts" in n], "lr": 5e-3},
    {"params": [p for n, p in model.named_parameters() if "head" in n], "lr": 1e-3, "weight_decay": 1e-4}])
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x, y = weather(128)
    loss = F.mse_loss(model(x), y)
    model.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "router", model.router[0].weight[0, 0].item(), "its gradient", model.router[0].weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
