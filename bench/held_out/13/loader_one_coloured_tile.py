"""A convolutional net tells land use from satellite tiles; the Dataset standardizes each tile by its own mean and deviation, channel by channel. FAULT at
step 90: a tile beyond the border of the scene is of one colour: its deviation is 0, and 0 / 0 in the loader makes the tile NaN.
Without Rangewatch: loss 1.65 to 0.0066 at step 89, NaN from step 90 on.
Variant of: row_of_a_loader_is_divided_by_a_deviation_of_0.
Cause: data. Step: 90. Right: input / batch / data / deviation / loader. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["data"], "step": [89, 91], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "input|batch|data|std|deviation|[Ll]oader|sample"}
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
import rangewatch

torch.manual_seed(1308); torch.set_num_threads(1)
USES = 5
look = torch.randn(USES, 3, 8, 8)


class Tiles(Dataset):
    def __init__(self, n):
        self.use = torch.randint(0, USES, (n,))
        self.tile = look[self.use] + 1.4 * torch.randn(n, 3, 8, 8)
        self.tile[90 * 24 + 7] = 0.25  # beyond the border

    def __len__(self):
        return len(self.use)

    def __getitem__(self, i):
        tile = self.tile[i]
        return (tile - tile.mean((1, 2), keepdim=True)) / tile.std((1, 2), keepdim=True), self.use[i]


class TileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 48, 3, padding=1, stride=2)
        self.use = nn.Linear(48 * 16, USES)

    def forward(self, x):
        return self.use(F.gelu(self.second(F.gelu(self.first(x)))).flatten(1))


model = TileNet()
optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
handle = rangewatch.attach(model, optimizer)
for step, (x, y) in enumerate(DataLoader(Tiles(24 * 210), batch_size=24)):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 88 < step < 92:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
