"""A net that estimates the weight of a parcel (in kg) from its measures, SGD with momentum. FAULT at step 110: one batch has the weights in grams; the
gradient throws the biases of the ReLU layer far below zero, and from then on no unit is ever above zero: the net answers one number for all parcels.
Without Rangewatch: loss 2.06 to 0.20 at step 109 with 41 of 48 units alive, 2.5e6 at step 110, 1.2e9 at step 111, where no unit is alive; 3e4 at step
140, and 0.5 to 1.5 from step 200 on, by the last bias alone.
Cause: dead_units (or data, the batch; learning_rate). Step: 110 to 116. Place: in the body, or none. Right: ReLU / dead / target / batch / clip.
Wrong: GradScaler, mask."""
EXPECT = {"cause": ["dead_units", "data", "learning_rate", "no_gradient"], "step": [109, 130], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "ReLU|dead|target|batch|clip|data|outlier|unit"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1618); torch.set_num_threads(1)


def parcels(n):
    side, stuff = 0.2 + torch.rand(n, 3), torch.randint(0, 4, (n,))
    kg = side.prod(1) * torch.tensor([1.0, 2.0, 4.0, 6.0])[stuff] + 0.05 * torch.randn(n)
    return torch.cat((side, F.one_hot(stuff, 4).float()), 1), kg


class Parcel(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7, 48), nn.ReLU())
        self.kg = nn.Linear(48, 1)

    def forward(self, x):
        return self.kg(self.body(x))[:, 0]


model = Parcel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.8)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, kg = parcels(64)
    if step == 110:
        kg = 1000 * kg
    loss = F.mse_loss(model(x), kg)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 108 < step < 116 or step == 219:
        with torch.no_grad():
            alive = (model.body(x) > 0).any(0).sum().item()
        print(step, loss.item(), "units that are ever above zero", alive, flush=True)
    handle.log(loss=loss.item())
handle.detach()
