"""House prices from a table (living area in square feet, plot, year built, rooms, distance, tax id) by an MLP, SGD.
FAULT at step 0: neither the columns (0.1 to 60 000) nor the prices (in dollars) are standardised.
Without Rangewatch: loss 1.04e11 at step 0, inf at 1, NaN from 2 on; all predictions NaN.
Cause: data (unscaled inputs and targets). Step: 0 to 2. Right: standardise the inputs and the target. Wrong: GradScaler, raise the learning rate, attention mask."""
EXPECT = {"cause": ["data", "learning_rate"], "step": [0, 5], "place": None, "rank": None,
          "right": r"(?i)normali[sz]|standardi[sz]|scal|input|feature|range|learning rate|target", "wrong": ["GradScaler", r"(?i)raise the learning rate", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2)
torch.set_num_threads(1)

n = 4000
area = 600 + 3000 * torch.rand(n)
plot = 2000 + 58000 * torch.rand(n) ** 2
year = torch.randint(1900, 2023, (n,)).float()
rooms = torch.randint(1, 9, (n,)).float()
distance = 0.1 + 30 * torch.rand(n)
tax_id = torch.randint(1, 40, (n,)).float()
X = torch.stack([area, plot, year, rooms, distance, tax_id], dim=1)
price = 110 * area + 1.5 * plot + 600 * (year - 1900) + 9000 * rooms - 2500 * distance + 15000 * torch.randn(n)
price = price.unsqueeze(1)

model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
loss_fn = nn.MSELoss()
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, opt)

step = 0
for epoch in range(4):
    order = torch.randperm(n)
    for rows in order.split(64):
        pred = model(X[rows])
        loss = loss_fn(pred, price[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        handle.log(loss=loss.item())
        if step < 6 or step % 50 == 0:
            print("step", step, "loss", loss.item(), flush=True)
        step += 1
print("done, predicted", model(X[:3]).flatten().tolist(), "true", price[:3].flatten().tolist())
handle.detach()
