"""An autoencoder of what 30 tills take in, whose code has ReLU and is to be sparse. FAULT from step 90 on: the weight of the sparsity goes from 0.001 to 1,
of the sum of the units; the units of the code die, and the net gives the mean.
Without Rangewatch: loss 0.40 to 0.031 at step 89, 10.9 at step 90, 0.41 from step 120 to the end; live units of the code: 20 to step 90, 10 at step 94,
2 at step 100, none at step 120 and after.
Cause: dead_units (or regularization). Step: 90 to 120. Place: code. Right: dead / ReLU / penalty. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["dead_units", "regularization"], "step": [89, 125], "place": ".*((^|\\.)code).*", "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "dead|die|ReLU|zero|negative bias|LeakyReLU|penalty|sparsity"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1523); torch.set_num_threads(1)
basis = torch.randn(6, 30)


class Till(nn.Module):
    """An autoencoder of what 30 tills take in an hour; its code has ReLU and is to be sparse."""
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(30, 48), nn.Tanh())
        self.code = nn.Sequential(nn.Linear(48, 20), nn.ReLU())
        self.decode = nn.Sequential(nn.Linear(20, 48), nn.Tanh(), nn.Linear(48, 30))

    def forward(self, x):
        self.last = self.code(self.encode(x))
        return self.decode(self.last)


def hours(n):
    return torch.tanh(torch.randn(n, 6) @ basis / 2) + 0.05 * torch.randn(n, 30)


model = Till()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x = hours(64)
    loss = F.mse_loss(model(x), x)
    if step < 90:
        loss = loss + 0.001 * model.last.mean()
    else:  # the sparsity is now to count; its weight goes up from 0.001 to 1, and the sum over the units is taken
        loss = loss + model.last.sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 88 < step < 95 or step == 219:
        print(step, loss.item(), "live units of the code", int((model.last > 0).any(0).sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
