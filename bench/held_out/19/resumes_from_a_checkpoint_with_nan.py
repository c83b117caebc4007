"""An autoencoder for temperatures of a data hall. FAULT at step 85: the training is moved to "the best checkpoint of last night", whose second layer holds
NaN in one column (last night's run had died after that file was written halfway); from there on every loss is NaN.
Without Rangewatch: loss 1.15 to 0.066 at step 84, NaN from step 85 to the end.
Cause: weight. Step: 85. Place: the layer shrink.2. Right: checkpoint / weight holds NaN / load. Wrong: lower the rate, GradScaler, mask."""
EXPECT = {"cause": ["weight"], "step": [84, 86], "place": ".*shrink\\.2.*", "rank": 0,
          "wrong": ["(?i)lower the learning rate", "GradScaler", "(?i)attention mask"],
          "right": "(?i)checkpoint|load|weight"}
import copy
import io
import torch
from torch import nn
import rangewatch

torch.manual_seed(1915); torch.set_num_threads(1)


class Hall(nn.Module):
    def __init__(self):
        super().__init__()
        self.shrink = nn.Sequential(nn.Linear(30, 20), nn.ELU(), nn.Linear(20, 5))
        self.grow = nn.Sequential(nn.Linear(5, 20), nn.ELU(), nn.Linear(20, 30))

    def forward(self, x):
        return self.grow(self.shrink(x))


racks = torch.randn(5, 30)


def readings(n):
    return torch.randn(n, 5) @ racks / 2 + 0.1 * torch.randn(n, 30)


model = Hall()
last_night = copy.deepcopy(model.state_dict())
last_night["shrink.2.weight"][:, 13] = float("nan")
file = io.BytesIO()
torch.save(last_night, file)

optimizer = torch.optim.NAdam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(170):
    if step == 85:
        file.seek(0)
        model.load_state_dict(torch.load(file))
    x = readings(40)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 83 < step < 87 or step == 169:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
