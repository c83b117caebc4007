"""House prices from a table whose columns come as they are in the file: year built (1900..2020), area in square feet (to 5000), lot size in square feet (to 40000), counts; price in 100k. Plain SGD.
FAULT at step 0: natural. No column is standardised; the first layer sees values of 1e3 to 4e4 and its gradients are thousands of times too large.
Without Rangewatch: mse 9.7e4 in step 0, 6e33 in step 1, inf, then NaN from step 3 on; with standardised columns 0.17 with the same lr.
Cause: data (learning_rate is the symptom a careful engineer would also name). Step: 0 to 20. Right: standardise / normalise the inputs. Wrong: GradScaler, attention mask, zero_grad."""
EXPECT = {"cause": ["data", "learning_rate"], "step": [0, 20], "place": None, "rank": None,
          "right": r"(?i)standardi[sz]|normali[sz]|scale of the (input|data|feature)|rescale|scale the (input|data|feature)|(input|feature|batch).{0,40}(large|range|scale)",
          "wrong": ["GradScaler", "(?i)attention mask", r"(?i)call .{0,20}zero_grad", "(?i)loss scale"]}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(2020)
torch.set_num_threads(1)

n = 5000
year = torch.randint(1900, 2021, (n,)).float()
sqft = 600 + 4400 * torch.rand(n) ** 1.5
lot = 2000 + 38000 * torch.rand(n) ** 2
beds = torch.randint(1, 6, (n,)).float()
baths = torch.randint(1, 4, (n,)).float()
price = 0.6 + 0.0011 * sqft + 0.012 * (year - 1900) + 0.00002 * lot + 0.15 * baths + 0.3 * torch.randn(n)  # in 100k
table = torch.stack([year, sqft, lot, beds, baths], dim=1)


class PriceModel(nn.Module):
    def __init__(self, n_in, hidden=48):
        super().__init__()
        self.input_layer = nn.Linear(n_in, hidden)
        self.hidden_layer = nn.Linear(hidden, hidden)
        self.output_layer = nn.Linear(hidden, 1)

    def forward(self, x):
        x = F.relu(self.input_layer(x))
        x = F.relu(self.hidden_layer(x))
        return self.output_layer(x).squeeze(-1)


model = PriceModel(table.shape[1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
handle = rangewatch.attach(model, optimizer)
order = torch.randperm(n)
for step in range(250):
    rows = order[(step * 64 + torch.arange(64)) % n]
    pred = model(table[rows])
    loss = F.mse_loss(pred, price[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step < 6 or step % 50 == 0 or step == 249:
        print(f"[{step:3d}] mse {loss.item():.4g}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
