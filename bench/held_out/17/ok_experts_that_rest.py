"""HEALTHY. A forecast of a shop's sales with one expert for each of six seasons and one for holidays, chosen by the calendar; an expert that isn't called
in a batch has no gradient at all (None) in it, the one for holidays most of the time. All learn when their days come.
Without Rangewatch: loss 3.1 to 0.08 at the end on the common days, 7.7 to 1.2 on the holidays; one or two of seven experts have a gradient at a step."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1628); torch.set_num_threads(1)
habit = torch.randn(7, 8)


class Shop(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 32), nn.GELU())
        self.expert = nn.ModuleList(nn.Linear(32, 1) for _ in range(7))

    def forward(self, x, season):
        h, sales = self.trunk(x), torch.zeros(len(x))
        for s in season.unique().tolist():
            sales = sales.index_put((torch.where(season == s)[0],), self.expert[s](h[season == s])[:, 0])
        return sales


model = Shop()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x = torch.randn(64, 8)
    season = torch.full((64,), (step // 4) % 6)
    if step % 20 == 11:
        season[torch.rand(64) < 0.7] = 6  # a holiday
    sales = (x * habit[season]).sum(1) + 0.1 * torch.randn(64)
    loss = F.mse_loss(model(x, season), sales)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 in (0, 11) or step == 239:
        print(step, loss.item(), "experts with a gradient", sum(e.weight.grad is not None for e in model.expert), flush=True)
    handle.log(loss=loss.item())
handle.detach()
