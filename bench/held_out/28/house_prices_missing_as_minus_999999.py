"""An MLP that foretells prices of houses from twelve columns of a table. FAULT at step 97: the rows of one county carry -999999 for a missing floor area,
which the standardisation (mean 140, deviation 55) makes -18184; one batch of 64 has four such rows.
Without Rangewatch: loss 0.47 to 0.066 at step 96, 729 at step 97, 146 at step 99, 1331 at step 100, 0.31 at step 120, 0.10 at the end.
Cause: data. Step: 97. Right: input / rows / outlier / sentinel / missing. Wrong: GradScaler, attention mask, DDP."""
EXPECT = {"cause": ["data"], "step": [96, 99], "place": None, "rank": None,
          "right": "(?i)data|batch|input|row|outlier|sentinel|missing|normali", "wrong": ["GradScaler", "attention mask", "(?i)all_reduce"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2024); torch.set_num_threads(1)
N = 64 * 180
area = 140 + 55 * torch.randn(N)
other = torch.randn(N, 11)
price = 0.9 * (area - 140) / 55 + 0.5 * torch.sin(2 * other[:, 0]) + 0.3 * other[:, 1] * other[:, 2] + 0.05 * torch.randn(N)
county = torch.arange(N) // 64
listed = area.clone()
listed[(county == 97) & (torch.arange(N) % 16 == 3)] = -999999.0
table = torch.cat((((listed - 140) / 55)[:, None], other), 1)

model = nn.Sequential()
model.add_module("inp", nn.Linear(12, 64))
model.add_module("act1", nn.ReLU())
model.add_module("mid", nn.Linear(64, 64))
model.add_module("act2", nn.ReLU())
model.add_module("price", nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    rows = slice(step * 64, step * 64 + 64)
    pred = model(table[rows]).squeeze(1)
    loss = nn.functional.smooth_l1_loss(pred, price[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 95 < step < 101 or step == 179:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
