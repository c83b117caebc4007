"""Sales of goods in shops by learned factors. FAULT from the start: ReduceLROnPlateau has mode="max" (it was written for the share of right answers) and is
given the loss: since the loss does not rise, the rate is halved again and again.
Without Rangewatch: loss 1.12 to 0.33 at step 60, 0.23 to 0.34 to the end; the rate is 0.005 at step 20, 3e-4 at step 80, 6e-7 at the end. With mode="min"
the loss is 0.013 at the end.
Cause: learning_rate. Step: 10 and later. Right: learning rate / scheduler / plateau / mode. Wrong: GradScaler, mask, dead units, vanishing."""
EXPECT = {"cause": ["learning_rate"], "step": [10, 180], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "dead units", "vanish"],
          "right": "learning rate|schedul|plateau|mode|lr|decay|small"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1526); torch.set_num_threads(1)
SHOPS, GOODS = 12, 20
u, v = torch.randn(SHOPS, 4), torch.randn(GOODS, 4)


class Demand(nn.Module):
    """Sales of a good in a shop, by factors of both and a small net."""
    def __init__(self):
        super().__init__()
        self.shop, self.good = nn.Embedding(SHOPS, 12), nn.Embedding(GOODS, 12)
        self.net = nn.Sequential(nn.Linear(36, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, shop, good):
        a, b = self.shop(shop), self.good(good)
        return self.net(torch.cat((a, b, a * b), 1))[:, 0]


def sales(n):
    shop, good = torch.randint(0, SHOPS, (n,)), torch.randint(0, GOODS, (n,))
    return shop, good, (u[shop] * v[good]).sum(1) / 2 + 0.1 * torch.randn(n)


model = Demand()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
# the scheduler was written for the share of right answers, and the loss is given to it now
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=2)
handle = rangewatch.attach(model, optimizer)
seen = []
for step in range(220):
    shop, good, y = sales(128)
    loss = F.mse_loss(model(shop, good), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen.append(loss.item())
    if step % 5 == 4:
        scheduler.step(sum(seen[-5:]) / 5)
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
