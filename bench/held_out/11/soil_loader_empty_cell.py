"""A residual MLP that estimates the carbon in soil from 30 measurements, read by a DataLoader with a Dataset of its own. FAULT at step 76: row 1222 of the
table has an empty cell, which is read as NaN.
Without Rangewatch: loss 0.87 to 0.16 at step 75; NaN at step 76 and at each step after it.
Variant of: loaded: loader_gives_nan_in_a_row.
Cause: data. Step: 76. Right: batch / row / data / input / loader. Wrong: rate, GradScaler, attention mask, clip."""
EXPECT = {"cause": ["data"], "step": [75, 77], "place": None, "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "[Cc]lip the grad"],
          "right": "batch|row|data|input|loader|sample"}
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
import rangewatch

torch.manual_seed(1110); torch.set_num_threads(1)


class Soil(Dataset):
    """A table whose cells are text."""

    def __init__(self, rows):
        x = torch.randn(rows, 30)
        y = x[:, :10].sum(1) / 3 + torch.sin(2 * x[:, 11]) + 0.1 * torch.randn(rows)
        self.lines = [[f"{cell:.4f}" for cell in (*row, carbon)] for row, carbon in zip(x.tolist(), y.tolist())]
        self.lines[1222][13] = ""

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        cells = [float(cell) if cell else float("nan") for cell in self.lines[i]]
        return torch.tensor(cells[:-1]), torch.tensor(cells[-1])


class SoilNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(30, 48)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 48)) for _ in range(3))
        self.carbon = nn.Linear(48, 1)

    def forward(self, x):
        h = self.enter(x)
        for block in self.blocks:
            h = h + block(h)
        return self.carbon(h)[:, 0]


model = SoilNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step, (x, y) in enumerate(DataLoader(Soil(3400), batch_size=16)):
    loss = F.smooth_l1_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 74 < step < 79:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
