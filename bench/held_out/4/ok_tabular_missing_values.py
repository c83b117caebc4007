"""A net for table rows of which a tenth is missing, given as NaN: the first module takes them, puts a learned vector in their place and goes on with finite
numbers; its input has NaN at every step and nothing else ever has. HEALTHY. Without Rangewatch: loss 0.7 to about 0.25."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(139); torch.set_num_threads(1)


class Columns(nn.Module):
    def __init__(self, columns, d):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(columns, d) / d ** 0.5), nn.Parameter(torch.zeros(columns, d))
        self.missing = nn.Parameter(torch.zeros(columns, d))

    def forward(self, x):
        gone = x.isnan()[..., None]
        return torch.where(gone, self.missing, x.nan_to_num(0.0)[..., None] * self.weight + self.bias)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.columns, self.body = Columns(14, 8), nn.Sequential(nn.Flatten(), nn.Linear(112, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.body(self.columns(x))[:, 0]


model, weights = Net(), torch.randn(14)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    x = torch.randn(128, 14)
    y = (x @ weights + x[:, 0] * x[:, 1] > 0).float()
    x = torch.where(torch.rand_like(x) < 0.1, torch.tensor(float("nan")), x)
    loss = F.binary_cross_entropy_with_logits(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or step == 199:
        print(step, round(loss.item(), 4))
