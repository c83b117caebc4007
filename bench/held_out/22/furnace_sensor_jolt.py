"""A GRU cell unrolled by hand forecasts the next temperatures of a furnace. FAULT at step 150: a jolt of the sensor's amplifier shifts the targets by 3000 standard deviations,
and the shift decays by a third from step to step: the gradients explode at step 150 and come down over some twenty steps. There is no clip.
Without Rangewatch: loss 0.44 to 0.0011 and a gradient norm of 0.018 at step 149; 9e6 and 5992 at step 150, 4e6 and 3824 at step 151, 211 at step 160, 17 at step 170; the loss is 8.3 at the end.
Causes: data (targets), clip (none). Right: the batch / targets / clip the gradient. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data", "clip"], "step": [149, 152], "place": None, "rank": 0,
          "right": "(?i)data|batch|target|clip|outlier|label", "wrong": ["GradScaler", "attention mask", "[Rr]aise the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2230); torch.set_num_threads(1)


class Furnace(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.read = nn.GRUCell(3, 48), nn.Linear(48, 3)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 48)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.read(h)


model = Furnace()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
shift = 0.0
for step in range(230):
    t = 40 * torch.rand(40, 1) + torch.arange(17)
    curve = torch.stack((torch.sin(t / 3), torch.cos(t / 5), torch.sin(t / 3) * torch.cos(t / 5)), 2) + 0.03 * torch.randn(40, 17, 3)
    shift = 3000.0 if step == 150 else shift * 2 / 3
    loss = (model(curve[:, :-1]) - (curve[:, -1] + shift)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()
    optimizer.step()
    handle.log(loss=loss.item(), gradient=norm)
    if step % 25 == 0 or 148 < step < 154 or step in (160, 170, 180, 190, 229):
        print(step, loss.item(), "gradient norm", norm, flush=True)
handle.detach()
