"""A tabular net for patients' risk: batch norm of the columns, embedding of the ward, MLP, Adam. FAULT at step 130: one row has a height of 0, and
weight / height ** 2, computed in the table, is infinite. BatchNorm makes the whole column NaN, and its running mean too.
Without Rangewatch: loss 0.72 to 0.08 at step 129, NaN from step 130 on.
Report: alteryx/featuretools#1496 (division by zero in a feature gives inf), tensorflow/tensorflow#46145 (pct_change, then NaN loss).
Cause: data. Step: 130. Right: data / input / Inf / batch. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [130, 130], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "data|input|batch|loader|sample|row|[Ii]nf"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(806); torch.set_num_threads(1)
WARDS = 9
ward_risk = torch.randn(WARDS)


def table(n=64, broken=False):
    height, weight = 1.7 + 0.1 * torch.randn(n), 75 + 12 * torch.randn(n)
    if broken:
        height[11] = 0.0  # not measured
    bmi = weight / height ** 2
    other, ward = torch.randn(n, 8), torch.randint(0, WARDS, (n,))
    risk = (bmi.nan_to_num(posinf=25.0) - 26) / 5 + other[:, 0] * other[:, 1] + ward_risk[ward]
    return torch.cat([height[:, None], weight[:, None], bmi[:, None], other], 1), ward, (risk > 0).float()


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.columns = nn.BatchNorm1d(11)
        self.ward = nn.Embedding(WARDS, 6)
        self.mlp = nn.Sequential(nn.Linear(17, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x, ward):
        return self.mlp(torch.cat([self.columns(x), self.ward(ward)], 1)).squeeze(1)


model = Tabular()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, ward, y = table(broken=step == 130)
    loss = F.binary_cross_entropy_with_logits(model(x, ward), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 128 < step < 133:
        print(step, loss.item(), flush=True)
handle.detach()
