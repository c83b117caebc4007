"""A tabular net with BatchNorm1d tells whether a turbine needs service from 14 sensors (Adam, every 10 steps an evaluation on held-out rows in eval mode). FAULT in step 150: one file of the day is in micropascal, its batch is multiplied by 1e8.
The training loss hardly minds (BatchNorm uses the batch's own statistics), but the running mean and variance of `bn_in` are poisoned: var some 1e15, evaluation is at chance for the rest.
Without Rangewatch: train loss 0.69 to 0.24 (149), 0.08 at 150, 0.09 at 259, no jump at all; held-out accuracy 0.955 at step 149, 0.431 from step 150 to the end; running_var 6e14 after it, still 2e12 at 259.
Cause: data (one batch). Step: 150. Right: the batch of step 150 is some 1e8 times too large; its statistics stay in bn_in's running buffers, reset them. Wrong: lower the learning rate, GradScaler, checkpoint."""
EXPECT = {"cause": ["data"], "step": [150, 151], "place": None, "rank": None,
          "right": "(?i)data|batch|input|outlier|running", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(5116)
torch.set_num_threads(1)
rule = torch.randn(14, 3)


def sensors(n):
    x = torch.randn(n, 14)
    z = x @ rule
    return x, ((z[:, 0] * z[:, 1] / 6 + z[:, 2]) > 0).float()


class Turbine(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn_in = nn.BatchNorm1d(14, momentum=0.05)
        self.lin_in = nn.Linear(14, 64)
        self.bn_mid = nn.BatchNorm1d(64, momentum=0.05)
        self.lin_mid = nn.Linear(64, 64)
        self.service = nn.Linear(64, 1)

    def forward(self, x):
        x = torch.relu(self.bn_mid(self.lin_in(self.bn_in(x))))
        return self.service(torch.relu(self.lin_mid(x)))[:, 0]


turbine = Turbine()
opt = torch.optim.Adam(turbine.parameters(), lr=3e-3)
handle = rangewatch.attach(turbine, opt)
held_x, held_y = sensors(1000)
for step in range(260):
    turbine.train()
    x, y = sensors(128)
    if step == 150:
        x = x * 1e8
    loss = nn.functional.binary_cross_entropy_with_logits(turbine(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step % 30 == 0 or step in (149, 151, 259):
        turbine.eval()
        with torch.no_grad():
            good = ((turbine(held_x) > 0) == (held_y > 0)).float().mean().item()
        print(step, "train loss", round(loss.item(), 4), "held-out accuracy", round(good, 3),
              "running var", f"{turbine.bn_in.running_var.max().item():.3g}", flush=True)
handle.detach()
