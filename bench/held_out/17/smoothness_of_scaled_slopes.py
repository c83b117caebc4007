"""A net that learns the energy of a molecule of three bonds, with a GradScaler; from step 100 on a penalty on the slope of its loss by the input is to
make it smooth. FAULT at step 100: the slopes are taken of scaler.scale(loss) and never divided by the scale, so the penalty is the square of the scale
too great (65536 squared is 4.3e9).
Without Rangewatch: loss 1.45 to 0.079 at step 99, 1279 at step 100 (gradient norm 4135), 1844 at step 103, 2.0 at step 120, 0.28 at the end; with
slopes of the loss itself it is 0.035 at the end. The scale stays at 65536.
Cause: loss_scale. Step: 100. Right: scale / unscale / gradient penalty / divide. Wrong: attention mask, data contains NaN."""
EXPECT = {"cause": ["loss_scale"], "step": [99, 103], "place": None, "rank": 0,
          "wrong": ["attention mask", "bfloat16", "input (data )?contains"],
          "right": "scale|unscale|penalty|GradScaler"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1620); torch.set_num_threads(1)


def molecules(n):
    bond = 0.6 + 1.2 * torch.rand(n, 3)
    return bond, ((1 - torch.exp(-1.5 * (bond - 1))) ** 2).sum(1) + 0.3 * bond.prod(1)


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x)[:, 0]


model = Energy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(180):
    bond, energy = molecules(96)
    bond.requires_grad_()
    loss = F.mse_loss(model(bond), energy)
    if step >= 100:
        slope, = torch.autograd.grad(scaler.scale(loss), bond, create_graph=True)
        loss = loss + 0.01 * (slope ** 2).sum(1).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or 98 < step < 104 or step == 179:
        print(step, loss.item(), "gradient norm", norm.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
