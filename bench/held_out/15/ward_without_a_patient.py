"""A net for how many nurses a ward needs, from the shares of the kinds of patients. FAULT at step 105: a ward is closed and has no patient: its shares are
0 / 0, NaN in the forward pass.
Without Rangewatch: loss 7.0 to 0.20 at step 104, NaN from step 105 on.
Cause: forward_arithmetic (or data: the empty row). Step: 105. Right: division / zero / empty / epsilon. Wrong: GradScaler, mask, learning rate, bfloat16."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [104, 106], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate", "bfloat16"],
          "right": "divi|zero|empty|0 / 0|input|data|batch|epsilon|clamp"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1518); torch.set_num_threads(1)
KINDS = 6
care = torch.rand(KINDS)


class StaffNeed(nn.Module):
    """How many nurses a ward needs, from the numbers of patients of each kind and the time of day."""
    def __init__(self):
        super().__init__()
        self.kinds = nn.Sequential(nn.Linear(KINDS, 32), nn.ReLU())
        self.size = nn.Sequential(nn.Linear(2, 32), nn.ReLU())
        self.need = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, patients, clock):
        total = patients.sum(1, keepdim=True)
        share = patients / total
        size = self.size(torch.cat((total / 20, clock), 1))
        return self.need(torch.cat((self.kinds(share), size), 1))[:, 0]


def wards(n):
    patients = torch.poisson(1.0 + 3 * torch.rand(n, KINDS))
    patients[:, 0] += 1
    clock = torch.rand(n, 1)
    return patients, clock


def needed(patients, clock):
    return patients @ care / 4 * (0.7 + 0.3 * torch.sin(6.2832 * clock[:, 0])) + 0.5


model = StaffNeed()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    patients, clock = wards(48)
    if step == 105:
        patients[20] = 0.0  # the ward is closed for paint
    loss = F.mse_loss(model(patients, clock), needed(patients, clock))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (104, 105, 106, 199):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
