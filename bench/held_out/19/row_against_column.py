"""A net that foretells how long a repair takes. FAULT at step 0: the net gives a row of 50 predictions (squeezed), the table gives a column of 50 by 1
targets; the difference is 50 by 50, every prediction against every target, so that the best it can learn is the mean.
Without Rangewatch: loss 4.8 at step 0, 2.7 to 4.1 to the end, the variance of the targets is 3.66 and the spread of the predictions 0.03; with equal shapes
0.11.
Cause: forward_arithmetic (the shapes of the loss) or data. Step: any. Right: shape / broadcast / squeeze. Wrong: GradScaler, mask, lower the rate."""
EXPECT = {"cause": ["forward_arithmetic", "data", "(none)", ""], "step": [0, 199], "place": None, "rank": 0, "least": "info",
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)bfloat16"],
          "right": "(?i)shape|broadcast|squeeze|column|size"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1927); torch.set_num_threads(1)
table = torch.randn(1500, 11)
hours = (1.5 * table[:, :1] - table[:, 1:2] * table[:, 2:3] + table[:, 3:4].abs())


class Repair(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(11, 48), nn.Softplus(), nn.Linear(48, 48), nn.Softplus())
        self.time = nn.Linear(48, 1)

    def forward(self, x):
        return self.time(self.body(x)).squeeze(1)


model = Repair()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    rows = torch.randint(0, 1500, (50,))
    predicted = model(table[rows])
    loss = (predicted - hours[rows]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "variance of the targets", hours.var().item(), "spread of the predictions", predicted.std().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
