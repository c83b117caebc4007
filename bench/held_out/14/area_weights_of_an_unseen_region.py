"""A net foretells rents; each batch of the DataLoader comes beside weights of the regions, share in the census / share in the batch of the month.
FAULT at step 120: the weights of month 4 are made anew; a region is in neither of the two, 0 / 0 is NaN, and its rows (added late) carry it.
Without Rangewatch: loss 2.72 to 0.28 at step 119, NaN from step 120 on.
Variant of: weights_beside_a_loader_are_0_by_0 (here a regression, weights by region and month).
Cause: data (forward_arithmetic would do: the loss's weights are NaN). Step: 120. Right: weight / 0 / divi / loss / data. Wrong: lower the rate, mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [119, 123], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "weight|divi|loss|target|data|batch|zero"}
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rangewatch

torch.manual_seed(1411); torch.set_num_threads(1)
REGIONS = 8


class Rent(nn.Module):
    def __init__(self):
        super().__init__()
        self.region = nn.Embedding(REGIONS, 4)
        self.rent = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, flat, region):
        return self.rent(torch.cat([flat, self.region(region)], 1))[:, 0]


def month(known):
    flat, region = torch.randn(40 * 32, 5), torch.randint(0, REGIONS, (40 * 32,))
    rent = flat[:, 0] + 0.5 * flat[:, 1] * flat[:, 2] + 0.3 * region + 0.1 * torch.randn(len(flat))
    census = torch.arange(1.0, REGIONS + 1)
    sample = torch.bincount(region, minlength=REGIONS).float()
    census[known:], sample[known:] = 0.0, 0.0
    weight = (census / census.sum()) / (sample / sample.sum())
    return DataLoader(TensorDataset(flat, region, rent), batch_size=32, shuffle=True), weight


model = Rent()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
step = 0
for number in range(5):
    loader, weight = month(REGIONS - 1 if number == 3 else REGIONS)
    for flat, region, rent in loader:
        loss = (weight[region] * (model(flat, region) - rent) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or 118 < step < 123:
            print(step, loss.item(), flush=True)
        handle.log(loss=loss.item())
        step += 1
handle.detach()
