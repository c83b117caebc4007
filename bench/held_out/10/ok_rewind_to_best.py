"""Forecasts of bicycle counts. Every 50 steps the validation loss is taken; where it is not the best one, weights and optimizer go back to those of
the best one and the rate is halved (as written in the recipe). Weights jump at steps 149, 249 and 399; the training is as it should be. HEALTHY.
Without Rangewatch: held-out loss 0.134, 0.091, 0.096 (back), 0.086, 0.086 (back), 0.085, 0.083, 0.085 (back); rate 0.008 to 0.001."""
EXPECT = {"healthy": True}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1036); torch.set_num_threads(1)


class BicycleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.hours = nn.Sequential(nn.Linear(48, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.count = nn.Linear(64, 12)

    def forward(self, x):
        return self.count(self.hours(x))


def counts(n, generator=None):
    start, rain = torch.randint(0, 168, (n, 1), generator=generator), torch.rand(n, 1, generator=generator)
    hour = start + torch.arange(60)
    mean = (1.2 - rain) * (2 + torch.sin(hour * 6.2832 / 24)) * (1 - 0.4 * (hour % 168 >= 120).float())
    y = mean + 0.15 * torch.randn(n, 60, generator=generator)
    return y[:, :48], y[:, 48:]


model = BicycleNet()
optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
handle = rangewatch.attach(model, optimizer)
best, kept = float("inf"), None
held_out = counts(128, torch.Generator().manual_seed(9))
for step in range(400):
    x, y = counts(32)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 50 == 49:
        model.eval()
        with torch.no_grad():
            error = F.mse_loss(model(held_out[0]), held_out[1]).item()
        model.train()
        went_back = error >= best
        if went_back:
            rate = optimizer.param_groups[0]["lr"] / 2
            model.load_state_dict(kept[0])
            optimizer.load_state_dict(kept[1])
            for group in optimizer.param_groups:
                group["lr"] = rate
        else:
            best, kept = error, (copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()))
        print(step, loss.item(), "held out", error, "went back" if went_back else "kept", "rate", optimizer.param_groups[0]["lr"], flush=True)
handle.detach()
