"""A convolutional net of fourteen layers that counts spots, each layer followed by a sigmoid, without norms or skips. FAULT from the start: the gradient is
smaller by a factor at each layer and does not reach the first ones; the net says the mean.
Without Rangewatch: loss 4.7 to 0.66 at step 20, and at the variance of the counts from then on; gradient of the first layer 2e-13,
of the last 0.03 to 2.3.
Variant of: starts: sigmoids_of_fifteen_layers.
Cause: no_gradient (vanishing) or dead_units. Step: 0. Place: any. Right: vanish / sigmoid / ReLU / norm / skip / initial. Wrong: lower the rate."""
EXPECT = {"cause": ["no_gradient", "dead_units"], "step": [0, 100], "place": None, "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "[Cc]lip the grad"],
          "right": "vanish|sigmoid|[Rr]e[Ll][Uu]|norm|skip|residual|initiali|saturat"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1131); torch.set_num_threads(1)


class SpotNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(1 if i == 0 else 10, 10, 3, padding=1) for i in range(14))
        self.count = nn.Linear(10, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.sigmoid(layer(x))
        return self.count(x.mean((2, 3)))[:, 0]


def plates(n):
    many = 0.02 + 0.2 * torch.rand(n, 1, 1, 1)
    spots = (torch.rand(n, 1, 8, 8) < many).float()
    return 2 * spots + 0.2 * torch.randn(n, 1, 8, 8), spots.sum((1, 2, 3)) / 5


model = SpotNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, y = plates(24)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    if step % 20 == 0 or step == 219:
        grads = [each.weight.grad.norm().item() for each in model.layers]
        print(step, loss.item(), "variance of the counts", y.var().item(), "gradient of the first", grads[0], "and last", grads[-1], flush=True)
    optimizer.step()
    handle.log(loss=loss.item())
handle.detach()
