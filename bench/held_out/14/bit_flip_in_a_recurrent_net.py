"""A GRU foretells a sum of waves. FAULT at step 105: a bit of the memory flips, the highest of the exponent of one recurrent weight, about 0.1 becomes 1e37.
Without Rangewatch: loss 1.05 to 0.054 at step 104, the weight is 6e37, loss 0.22 at step 105 (its gate is shut or open), 0.046 at 200.
Variant of: exponent_bit_of_a_weight_flips (here in a GRU).
Cause: weight. Step: 105. Right: weight / checkpoint / memory / bit. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["weight"], "step": [104, 108], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"], "right": "weight|checkpoint|memory|bit|hardware"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1420); torch.set_num_threads(1)


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.next = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, x):
        return self.next(self.read(x)[0])


model = Waves()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
t = torch.arange(25.0)
for step in range(220):
    if step == 105:
        bits = model.read.weight_hh_l0.data.view(torch.int32)
        bits[50, 7] ^= 1 << 30
        print("weight", model.read.weight_hh_l0[50, 7].item())
    x = (torch.sin(0.5 * t + 6.28 * torch.rand(32, 1)) + torch.sin(1.1 * t + 6.28 * torch.rand(32, 1)))[:, :, None]
    loss = F.mse_loss(model(x[:, :-1]), x[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 103 < step < 108:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
