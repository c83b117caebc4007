"""Message passing with sum aggregation, six layers, no normalisation, no clipping, regression of a graph. FAULT at step 110: the sampler gives dense
graphs (mean degree 24, not 3); every layer multiplies by the degree and the activations grow by eight at each of six layers: loss and gradients explode.
Without Rangewatch: loss 3.3 to 0.04 at step 109, 730 at 110, 478516 at 111, inf at 112, NaN from 113 on.
Report: cvignac/SMP#3 (NaN as activations explode: too many layers without normalization, no clipping).
Cause: activations that grow layer by layer: forward arithmetic, or the data (another degree), or the weights blown up by the step after. Right:
normalise / clip / mean / batch. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic", "data", "weight", "backward_arithmetic"], "step": [110, 113], "place": None, "rank": 0,
          "wrong": ["GradScaler", "loss scale", "attention mask"],
          "right": "[Nn]orm|clip|batch|data|input|sample"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(47); torch.set_num_threads(1)
N = 40


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.message, self.update = nn.Linear(d, d), nn.Linear(2 * d, d)

    def forward(self, x, a):
        return x + self.update(torch.cat([x, a @ self.message(x).relu()], -1)).relu()


class Net(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.inp, self.layers, self.out = nn.Linear(4, d), nn.ModuleList([Layer(d) for _ in range(6)]), nn.Linear(d, 1)

    def forward(self, x, a):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x, a)
        return self.out(x.mean(1))[:, 0]


model = Net()
for layer in model.layers:
    nn.init.normal_(layer.update.weight, 0, 0.05)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
watch = rangewatch.attach(model, optimizer)
for step in range(150):
    degree = 3 if step < 110 else 24
    a = (torch.rand(24, N, N) < degree / N).float()
    x = torch.randn(24, N, 4)
    y = (x[..., 0] * x[..., 1]).mean(1) + x[..., 2].mean(1) + 1
    loss = F.mse_loss(model(x, a), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 15 == 0 or 108 <= step < 116:
        print(step, loss.item())
