"""A net for the height of a field by its coordinates, with a decay of 0.9 an epoch. FAULT from step 80 on: the job is resumed with a newer script that calls
the scheduler at each batch: the rate is down to a tenth after 21 steps, to nothing by step 140.
Without Rangewatch: loss 0.40 to 0.078 at step 79 (rate 6.6e-4), 0.049 at step 100 (7.2e-5), 0.055 to 0.077 to the end (2.6e-10); with the rate of step 79
it is 0.014 at the end.
Cause: learning_rate. Step: 80 and later. Right: learning rate / scheduler / epoch. Wrong: GradScaler, mask, dead units."""
EXPECT = {"cause": ["learning_rate"], "step": [80, 180], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "dead units"],
          "right": "learning rate|schedul|decay|lr|epoch|batch"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1524); torch.set_num_threads(1)
BATCHES = 20  # an epoch


class Elevation(nn.Module):
    """A field of heights from coordinates, by Fourier features."""
    def __init__(self):
        super().__init__()
        self.register_buffer("wave", torch.randn(2, 24))
        self.net = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1))

    def forward(self, x):
        a = x @ self.wave
        return self.net(torch.cat((a.sin(), a.cos()), 1))[:, 0]


def points(n):
    x = 6 * torch.rand(n, 2)
    height = torch.sin(x[:, 0] * 2) * torch.cos(x[:, 1] * 1.5) + 0.5 * torch.sin(3 * x[:, 0] + 2 * x[:, 1])
    return x, height


model = Elevation()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    if step == 80:  # the job was stopped and goes on from its checkpoint, with a newer version of the script
        saved = scheduler.state_dict(), optimizer.state_dict()
        scheduler.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
    x, y = points(64)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step < 80:
        if step % BATCHES == BATCHES - 1:
            scheduler.step()
    else:
        scheduler.step()
    if step % 20 == 0 or step in (79, 219):
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
